"""The Triton kernel, and nothing else.

One program refreshes one row of every step of a group; programs that share a row (the grid's second dimension) share
its page table and leave the other buffers to the first of them. A mode differs from the others in one place: how a row
finds its request, length and prefix (`_row`).

All scalars are int64 and nothing is specialised on values, so that one binary serves every batch, padding, stride,
dtype and alignment. `rust/core/src/launch.rs` packs the arguments in the order of the signature.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["DECODE", "DRAFT_EXTEND", "TARGET_VERIFY", "refresh_kernel"]

DECODE = tl.constexpr(0)
TARGET_VERIFY = tl.constexpr(1)
DRAFT_EXTEND = tl.constexpr(2)

# Bits of `flags`.
_SEQ_LENS_INT64 = tl.constexpr(1)
_REQ_POOL_INDICES_INT64 = tl.constexpr(2)
_EXTEND_LENS_INT64 = tl.constexpr(4)
_PADDING_BY_SLOT = tl.constexpr(8)

# Bits of the status word, as `ReplayStatus`.
_SLOT_OUT_OF_TABLE = tl.constexpr(1)
_LENGTH_NOT_POSITIVE = tl.constexpr(2)
_LENGTH_EXCEEDS_TABLE = tl.constexpr(4)
_ROWS_EXCEED_BUCKET = tl.constexpr(8)
_EXTEND_LENGTH_NEGATIVE = tl.constexpr(16)


@triton.jit
def _load_int(pointer, index, stride, is_int64, mask):
    """Element `index` of a live vector as int64; its dtype is known at run time only. 0 where `mask` is false."""
    narrow = tl.load(pointer.to(tl.pointer_type(tl.int32)) + index * stride, mask & (is_int64 == 0), other=0)
    wide = tl.load(pointer.to(tl.pointer_type(tl.int64)) + index * stride, mask & (is_int64 != 0), other=0)
    return narrow.to(tl.int64) + wide


@triton.jit
def _packed_request(row, req_pool_indices, extend_lens, slot_stride, extend_stride, flags, batch, real, rows, SCAN: tl.constexpr):
    """The request of a packed row by a prefix sum over the extend lengths, a block of requests at a time.

    Requests that end at or before the row are counted and their lengths summed: the first number is the row's request,
    the second its first row. Returns (request, first row, all packed rows clipped to the bucket + 1, status bits).
    """
    # Sums are clipped to one past the bucket, which keeps every partial sum within 31 bits and rows past it out of it.
    ceiling = rows + 1
    request = row * 0
    first = row * 0
    total = row * 0
    negative = row * 0
    for start in range(0, real, SCAN):
        index = start + tl.arange(0, SCAN).to(tl.int64)
        live = index < real
        if flags & _PADDING_BY_SLOT:
            slots = _load_int(req_pool_indices, index, slot_stride, flags & _REQ_POOL_INDICES_INT64, live)
            live = live & (slots != 0)
        length = _load_int(extend_lens, index, extend_stride, flags & _EXTEND_LENS_INT64, live)
        negative = tl.maximum(negative, tl.max((length < 0).to(tl.int64), 0))
        length = tl.minimum(tl.maximum(length, 0), ceiling).to(tl.int32)
        ends = total + tl.cumsum(length, 0).to(tl.int64)
        before = (ends <= row) & (index < real)
        request += tl.sum(before.to(tl.int32), 0).to(tl.int64)
        first += tl.sum(tl.where(before, length, 0), 0).to(tl.int64)
        total = tl.minimum(total + tl.sum(length, 0).to(tl.int64), ceiling)
    bits = tl.where(negative > 0, _EXTEND_LENGTH_NEGATIVE, 0) | tl.where(total > rows, _ROWS_EXCEED_BUCKET, 0)
    return request, first, total, bits


@triton.jit
def _store_row(buffers, row, length, slot, prefix, last, ring_stride, RATIO: tl.constexpr, RING: tl.constexpr):
    """Writes one row of one step: everything but its page table. `buffers` are in the order of the step's fields."""
    position = length - 1
    if buffers[0] is not None:
        tl.store(buffers[0] + row, length.to(tl.int32))
    if buffers[1] is not None:
        tl.store(buffers[1] + row, slot.to(tl.int32))
    if buffers[2] is not None:
        tl.store(buffers[2] + row, prefix.to(tl.int32))
    if buffers[3] is not None:
        tl.store(buffers[3] + row, (length // RATIO).to(tl.int32))
    if buffers[4] is not None:
        # A group stays within its page, so the slot of its last token names the group's compressed slot.
        tl.store(buffers[4] + row, tl.maximum(last, 0) // RATIO)
    if buffers[5] is not None:
        tl.store(buffers[5] + row, position.to(tl.int32))
    if buffers[6] is not None:
        tl.store(buffers[6] + row, slot * RATIO + position % RATIO)
    if buffers[7] is not None:
        entry = tl.arange(0, RING)
        member = tl.maximum(position.to(tl.int32) - (RATIO - 1 - entry), 0) % RATIO
        tl.store(buffers[7] + row * ring_stride + entry, slot.to(tl.int32) * RATIO + member, entry < RATIO)


@triton.jit
def refresh_kernel(
    seq_lens,
    req_pool_indices,
    extend_lens,
    seq_stride,
    slot_stride,
    extend_stride,
    flags,
    batch,
    real,
    req_to_token,
    table_row_stride,
    table_col_stride,
    slots,
    width,
    rows,
    num_pages,
    page_stride,
    ring_stride,
    window,
    status,
    steps,
    offsets,
    MODE: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
    SCAN: tl.constexpr,
):
    """Refreshes row `program_id(0)` of every step.

    Args:
        seq_lens: [batch] int32 or int64, live lengths; `flags` tells the dtypes.
        req_pool_indices: [batch] int32 or int64, request slots.
        extend_lens: [batch] int32 or int64, rows of each request; read in draft extend only.
        seq_stride, slot_stride, extend_stride: strides of the three, in elements.
        flags: dtypes of the three, and the padding rule.
        batch: live requests.
        real: requests that are not padding by count.
        req_to_token: [slots, width] int32 with strides `table_row_stride` and `table_col_stride`.
        rows: rows of the bucket.
        num_pages: page table entries of a row that exist.
        page_stride, ring_stride: row strides of the two-dimensional buffers.
        window: rows of a request; target verify only.
        status: [1] int32, or-ed with what went wrong.
        steps: a tuple of buffers a step, None where absent.
        offsets: what each step adds to a length; decode only.
        MODE: DECODE, TARGET_VERIFY or DRAFT_EXTEND.
        RATIO: tokens of a compressed group.
        PAGE_SIZE: tokens of a page.
        RING: the power of two at or above RATIO.
        BLOCK: page table entries that a program handles at a time.
        SCAN: requests that a program sums at a time; draft extend only.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)

    bits = 0
    within = row < batch
    if MODE == DECODE:
        request = row
        real_row = row < real
    elif MODE == TARGET_VERIFY:
        request = row // window
        real_row = request < real
    else:
        request, first, total, bits = _packed_request(
            row, req_pool_indices, extend_lens, slot_stride, extend_stride, flags, batch, real, rows, SCAN
        )
        real_row = row < total
    base = _load_int(seq_lens, request, seq_stride, flags & _SEQ_LENS_INT64, real_row)
    slot = _load_int(req_pool_indices, request, slot_stride, flags & _REQ_POOL_INDICES_INT64, real_row)
    real_row = real_row & ((slot != 0) | ((flags & _PADDING_BY_SLOT) == 0))

    known_slot = (slot >= 0) & (slot < slots)
    # A base past the table cannot give a row, and clipped it cannot overflow what is added to it. Below, a base may be
    # as low as -offset and still give one, so only the sum is judged.
    base = tl.minimum(tl.maximum(base, -4611686018427387904), width + 1)
    prefix = base
    length = base
    if MODE == TARGET_VERIFY:
        length = base + row % window + 1
    elif MODE == DRAFT_EXTEND:
        extend = _load_int(extend_lens, request, extend_stride, flags & _EXTEND_LENS_INT64, real_row)
        prefix = tl.maximum(base - tl.maximum(extend, 0), 0)
        length = tl.minimum(prefix + 1 + (row - first), base)

    # One walk over the row's pages serves all steps, as far as the longest of them is live.
    farthest = row * 0
    stray = row < 0
    for step in tl.static_range(len(steps)):
        n = length + offsets[step]
        served = real_row & known_slot & (n > 0) & (n <= width)
        farthest = tl.maximum(farthest, tl.where(served, n, 0))
        stray = stray | (served == 0)
        if split == 0:
            inert = (real_row == 0) | (served == 0)
            if MODE == DECODE:
                before = n - 1
            else:
                before = tl.maximum(prefix, 0)
            n_row = tl.where(inert, 1, n)
            slot_row = tl.where(inert, 0, slot)
            last = 0
            if steps[step][4] is not None:
                place = slot_row * table_row_stride + (n_row - 1) * table_col_stride
                last = tl.load(req_to_token + place, n_row % RATIO == 0, other=0)
            _store_row(
                steps[step], row, n_row, slot_row, tl.where(inert, 0, before), last, ring_stride, RATIO, RING
            )
            fault = tl.where(
                known_slot == 0,
                _SLOT_OUT_OF_TABLE,
                tl.where(n <= 0, _LENGTH_NOT_POSITIVE, tl.where(n > width, _LENGTH_EXCEEDS_TABLE, 0)),
            )
            bits = bits | tl.where(real_row, fault, 0)
    if split == 0:
        if bits != 0:
            tl.atomic_or(status, bits.to(tl.int32))

    if steps[0][8] is not None:
        # Slot 0's first page, which inert rows show.
        spare = tl.maximum(tl.load(req_to_token, stray, other=0), 0) // PAGE_SIZE
        source = req_to_token + tl.where(farthest > 0, slot, 0) * table_row_stride
        pages = tl.maximum((farthest + PAGE_SIZE - 1) // PAGE_SIZE, 1)
        pages = tl.minimum(pages, num_pages).to(tl.int32)
        for start in range(split * BLOCK, pages, tl.num_programs(1) * BLOCK):
            page = start + tl.arange(0, BLOCK)
            token = page.to(tl.int64) * (table_col_stride * PAGE_SIZE)
            entry = tl.maximum(tl.load(source + token, page < pages, other=0), 0) // PAGE_SIZE
            for step in tl.static_range(len(steps)):
                n = length + offsets[step]
                served = real_row & known_slot & (n > 0) & (n <= width)
                live = tl.where(served, (n + PAGE_SIZE - 1) // PAGE_SIZE, 1)
                tl.store(
                    steps[step][8] + row * page_stride + page,
                    tl.where(served, entry, spare),
                    page < tl.minimum(live, num_pages),
                )
