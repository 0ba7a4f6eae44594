"""How a row of the bucket finds its request, its slot, its length and its prefix.

`row * 0` is a zero for each row: loops and branches of a kernel must keep a value's shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .bits import EXTEND_LENGTH_NEGATIVE, PADDING_BY_SLOT, ROWS_EXCEED_BUCKET, SLOT_OUT_OF_TABLE
from .numbers import HIGHEST, LOWEST, clip, load_clipped, load_exact, load_halves

__all__ = [
    "Row",
    "is_in_table",
    "load_request",
    "request_of",
    "resolve_packed_row",
    "resolve_row",
    "row_offset",
]


class LiveRequest(NamedTuple):
    """What the live batch holds of a request."""

    slot: Any
    """`Halves` of the request slot."""
    length: Any
    """`Halves` of the length."""


class Row(NamedTuple):
    """What a row shows.

    A step is served if its length, `length` and the step's offset together, is from 1 to `longest`. Only then does the
    slot mean anything.
    """

    slot: Any
    length: Any
    """The row's length before a step's offset."""
    prefix: Any
    longest: Any
    """The longest length that can be served: 0 for padding and for a slot out of the table, else the table's width."""
    status: Any
    """Bits of the status word that concern all steps."""


@triton.jit
def request_of(row, live, CONSTANTS: tl.constexpr):
    """The request of a row in decode or target verify."""
    return row // live.window if CONSTANTS.mode == "target_verify" else row


@triton.jit
def load_request(request, live):
    """Reads a request's slot and length."""
    slot = load_halves(live.req_pool_indices, request, live.num_real)
    length = load_halves(live.seq_lens, request, live.num_real)
    return LiveRequest(slot=slot, length=length)


@triton.jit
def row_offset(row, request, live, CONSTANTS: tl.constexpr):
    """What a row's length has beyond its request's live length, before a step's offset."""
    return row - request * live.window + 1 if CONSTANTS.mode == "target_verify" else row * 0


@triton.jit
def is_in_table(slot, table):
    """Whether the lower half of a slot is a slot of the table. One unsigned comparison excludes negative slots, too."""
    return slot.low.to(tl.uint32) < table.num_slots.to(tl.uint32)


@triton.jit
def resolve_row(row, request, live_request, group, CONSTANTS: tl.constexpr):
    """The `Row` of a row in decode or target verify."""
    live = group.live
    prefix = clip(live_request.length, live.seq_lens)
    limit = _limit(request, live_request.slot, group)
    return Row(
        slot=live_request.slot.low,
        length=prefix + row_offset(row, request, live, CONSTANTS),
        prefix=prefix,
        longest=limit.longest,
        status=limit.status,
    )


@triton.jit
def resolve_packed_row(row, group, CONSTANTS: tl.constexpr):
    """The `Row` of a row in draft extend."""
    live = group.live
    packed = _find_request(row, group, CONSTANTS)
    request = packed.request
    slot = load_halves(live.req_pool_indices, request, live.num_real)
    # Here a length is a difference of two live numbers, so that both are read as int64, and the results clipped.
    whole = load_exact(live.seq_lens, request, live.num_real)
    extend = load_exact(live.extend_lens, request, live.num_real)
    whole = tl.maximum(whole, LOWEST)
    start = tl.maximum(whole - tl.maximum(extend, 0), 0)
    prefix = tl.minimum(start, HIGHEST).to(tl.int32)
    length = tl.minimum(tl.minimum(start, HIGHEST) + 1 + (row - packed.first_row), whole).to(tl.int32)
    limit = _limit(request, slot, group)
    return Row(slot=slot.low, length=length, prefix=prefix, longest=limit.longest, status=packed.status | limit.status)


class _Limit(NamedTuple):
    """What of a `Row` follows from its request's slot alone."""

    longest: Any
    status: Any


@triton.jit
def _limit(request, slot, group):
    """The `_Limit` of a request, which is served if it is not padding and its slot is one of the table's."""
    live = group.live
    is_real = (request < live.num_real) & (((slot.low | slot.high) != 0) | ((live.flags & PADDING_BY_SLOT) == 0))
    known_slot = (slot.high == 0) & is_in_table(slot, group.table)
    longest = tl.where(is_real & known_slot, group.table.width, 0)
    return _Limit(longest=longest, status=tl.where(is_real, tl.where(known_slot, 0, SLOT_OUT_OF_TABLE), 0))


class _PackedRow(NamedTuple):
    """Where a row stands among the packed rows of draft extend."""

    request: Any
    first_row: Any
    """The first row of the request."""
    status: Any


@triton.jit
def _find_request(row, group, CONSTANTS: tl.constexpr):
    """The request of a packed row, by a prefix sum over the extend lengths, a block of requests at a time.

    Requests that end at or before the row are counted and their lengths summed: their number is the row's request,
    their sum the request's first row. A row behind all packed rows gets request `num_real`, which is padding.
    """
    live = group.live
    # Sums are clipped to one more than the bucket's rows. So every partial sum fits 31 bits, and a sum that exceeds the
    # bucket still exceeds it.
    ceiling = group.num_rows + 1
    request = row * 0
    first_row = row * 0
    total = row * 0
    negative = row * 0
    for start in range(0, live.num_real, CONSTANTS.scan):
        index = start + tl.arange(0, CONSTANTS.scan)
        length = load_clipped(live.extend_lens, index, live.num_real)
        if live.flags & PADDING_BY_SLOT:
            slots = load_clipped(live.req_pool_indices, index, live.num_real)
            length = tl.where(slots != 0, length, 0)
        negative = tl.maximum(negative, tl.max((length < 0).to(tl.int32), 0))
        length = tl.minimum(tl.maximum(length, 0), ceiling)
        ends = total + tl.cumsum(length, 0)
        before = (ends <= row) & (index < live.num_real)
        request += tl.sum(before.to(tl.int32), 0)
        first_row += tl.sum(tl.where(before, length, 0), 0)
        total = tl.minimum(total + tl.sum(length, 0), ceiling)
    status = tl.where(negative > 0, EXTEND_LENGTH_NEGATIVE, 0) | tl.where(total >= ceiling, ROWS_EXCEED_BUCKET, 0)
    return _PackedRow(request=request, first_row=first_row, status=status)
