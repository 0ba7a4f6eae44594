"""Bits of the kernel's `flags` and of the status word, as the Rust core has them."""

from __future__ import annotations

import triton.language as tl

import qsa_group._core as _core

__all__ = [
    "EXTEND_LENGTH_NEGATIVE",
    "LENGTH_EXCEEDS_TABLE",
    "LENGTH_NOT_POSITIVE",
    "PADDING_BY_SLOT",
    "PAGE_BITS_SHIFT",
    "ROWS_EXCEED_BUCKET",
    "SLOT_OUT_OF_TABLE",
]

PADDING_BY_SLOT = tl.constexpr(_core.PADDING_BY_SLOT)
# From this bit of the flags on stands the base 2 logarithm of a row's page lanes.
PAGE_BITS_SHIFT = tl.constexpr(_core.PAGE_BITS_SHIFT)

SLOT_OUT_OF_TABLE = tl.constexpr(_core.SLOT_OUT_OF_TABLE)
LENGTH_NOT_POSITIVE = tl.constexpr(_core.LENGTH_NOT_POSITIVE)
LENGTH_EXCEEDS_TABLE = tl.constexpr(_core.LENGTH_EXCEEDS_TABLE)
ROWS_EXCEED_BUCKET = tl.constexpr(_core.ROWS_EXCEED_BUCKET)
EXTEND_LENGTH_NEGATIVE = tl.constexpr(_core.EXTEND_LENGTH_NEGATIVE)
