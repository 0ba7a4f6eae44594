"""Bits of the kernel's `flags` argument and of the status word."""

from __future__ import annotations

import triton.language as tl

__all__ = [
    "EXTEND_LENGTH_NEGATIVE",
    "LENGTH_EXCEEDS_TABLE",
    "LENGTH_NOT_POSITIVE",
    "PADDING_BY_SLOT",
    "PAGE_BITS_SHIFT",
    "ROWS_EXCEED_BUCKET",
    "SLOT_OUT_OF_TABLE",
]

# Flags. From bit `PAGE_BITS_SHIFT` on stands the base 2 logarithm of a row's page lanes.
PADDING_BY_SLOT = tl.constexpr(1)
PAGE_BITS_SHIFT = tl.constexpr(8)

# The status word, as `ReplayStatus`.
SLOT_OUT_OF_TABLE = tl.constexpr(1)
LENGTH_NOT_POSITIVE = tl.constexpr(2)
LENGTH_EXCEEDS_TABLE = tl.constexpr(4)
ROWS_EXCEED_BUCKET = tl.constexpr(8)
EXTEND_LENGTH_NEGATIVE = tl.constexpr(16)
