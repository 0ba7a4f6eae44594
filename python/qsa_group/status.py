"""Why rows of a refresh were made inert or dropped."""

from __future__ import annotations

import enum

from . import _core

__all__ = ["ReplayStatus"]


class ReplayStatus(enum.IntFlag):
    """Why rows of a refresh were made inert or dropped; 0 where every row was served."""

    OK = 0
    SLOT_OUT_OF_TABLE = _core.SLOT_OUT_OF_TABLE
    """A request slot outside the table."""
    LENGTH_NOT_POSITIVE = _core.LENGTH_NOT_POSITIVE
    """A row length of 0 or less."""
    LENGTH_EXCEEDS_TABLE = _core.LENGTH_EXCEEDS_TABLE
    """A row length past the table's width."""
    ROWS_EXCEED_BUCKET = _core.ROWS_EXCEED_BUCKET
    """More packed rows than the bucket holds. The rows past the bucket were dropped."""
    EXTEND_LENGTH_NEGATIVE = _core.EXTEND_LENGTH_NEGATIVE
    """A negative extend length. The refresh took 0 instead."""
