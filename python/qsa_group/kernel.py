"""The Triton kernel, and nothing else.

A program refreshes one row of some or all steps of a group. The grid is rows x splits x shares: the programs of a row
and share divide its page tables among them and leave the other buffers to the first; each share has its part of the
steps. A mode differs from the others in one place: how a row finds its request, length and prefix.

Every argument is an int64, addresses too, and nothing is specialised on values, so that one binary serves every batch,
padding, stride, dtype and alignment. `rust/core/src/launch.rs` packs the arguments in the order of the signature.

The time of a refresh is a few memory latencies. So loads that do not need each other are started together, and all
before the first store, since a store is never overtaken by a later load.
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

# Below any length that an offset could lift to 1: offsets end at 2**29, widths at 2**30 (`layout.rs`), so that all
# lengths are int32 once they are clipped.
_LOWEST = tl.constexpr(-(1 << 30))
# Above any width, and with any offset added still an int32.
_HIGHEST = tl.constexpr((1 << 30) + 1)


@triton.jit
def _load_halves(address, index, stride, is_int64, limit):
    """Both halves of element `index` of a live vector; 0 from `limit` on. `stride` is in bytes.

    Its dtype is known at run time only. The low half is read whatever it is, the high half if there is one.
    """
    place = (address + index.to(tl.int64) * stride).to(tl.pointer_type(tl.int32))
    low = tl.load(place, index < limit, other=0)
    high = tl.load(place + 1, index < tl.where(is_int64 != 0, limit, 0), other=0)
    return low, tl.where(is_int64 != 0, high, low >> 31)


@triton.jit
def _load_clipped(address, index, stride, is_int64, limit):
    """Element `index` as int32, clipped to `_LOWEST` and `_HIGHEST`."""
    low, high = _load_halves(address, index, stride, is_int64, limit)
    clipped = tl.where(high == (low >> 31), low, tl.where(high < 0, _LOWEST, _HIGHEST))
    return tl.minimum(tl.maximum(clipped, _LOWEST), _HIGHEST)


@triton.jit
def _load_exact(address, index, stride, is_int64, limit):
    """Element `index` as int64."""
    low, high = _load_halves(address, index, stride, is_int64, limit)
    return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _packed_request(
    row, req_pool_indices, extend_lens, slot_stride, extend_stride, flags, real, rows, SCAN: tl.constexpr
):
    """The request of a packed row by a prefix sum over the extend lengths, a block of requests at a time.

    Requests that end at or before the row are counted and their lengths summed: the first number is the row's request,
    the second its first row. A row after the packed ones gets request `real`. Returns (request, first row, bits).
    """
    # Sums are clipped to one past the bucket, which keeps every partial sum within 31 bits and rows past it out of it.
    ceiling = (rows + 1).to(tl.int32)
    request = row * 0
    first = row * 0
    total = row * 0
    negative = row * 0
    for start in range(0, real, SCAN):
        index = start + tl.arange(0, SCAN)
        length = _load_clipped(extend_lens, index, extend_stride, flags & _EXTEND_LENS_INT64, real)
        if flags & _PADDING_BY_SLOT:
            slots = _load_clipped(req_pool_indices, index, slot_stride, flags & _REQ_POOL_INDICES_INT64, real)
            length = tl.where(slots != 0, length, 0)
        negative = tl.maximum(negative, tl.max((length < 0).to(tl.int32), 0))
        length = tl.minimum(tl.maximum(length, 0), ceiling)
        ends = total + tl.cumsum(length, 0)
        before = (ends <= row) & (index < real)
        request += tl.sum(before.to(tl.int32), 0)
        first += tl.sum(tl.where(before, length, 0), 0)
        total = tl.minimum(total + tl.sum(length, 0), ceiling)
    bits = tl.where(negative > 0, _EXTEND_LENGTH_NEGATIVE, 0) | tl.where(total >= ceiling, _ROWS_EXCEED_BUCKET, 0)
    return request, first, bits


@triton.jit
def _pick(values, step):
    """`values[step]` for a block of step indices, as int64; 0 past the last."""
    picked = step.to(tl.int64) * 0
    for index in tl.static_range(len(values)):
        picked = tl.where(step == index, values[index], picked)
    return picked


@triton.jit
def refresh_kernel(
    seq_lens,
    req_pool_indices,
    extend_lens,
    seq_stride,
    slot_stride,
    extend_stride,
    flags,
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
    lowest,
    highest,
    status,
    sequence_lengths,
    row_req_pool_indices,
    prefix_lengths,
    compressed_lengths,
    write_locs,
    logical_positions,
    pending_ring_slots,
    ring_group_locs,
    page_table,
    offsets,
    MODE: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
    SCAN: tl.constexpr,
):
    """Refreshes row `program_id(0)` of the steps that fall to `program_id(2)`, one slice of pages a `program_id(1)`.

    Args:
        seq_lens: address of [batch] int32 or int64, live lengths; `flags` tells the dtypes.
        req_pool_indices: address of [batch] int32 or int64, request slots.
        extend_lens: address of [batch] int32 or int64, rows of each request; read in draft extend only.
        seq_stride: stride of `seq_lens`, in bytes.
        slot_stride: stride of `req_pool_indices`, in bytes.
        extend_stride: stride of `extend_lens`, in bytes.
        flags: dtypes of the three, and the padding rule.
        real: live requests that are not padding by count.
        req_to_token: address of [slots, width] int32, KV slot of each token.
        table_row_stride: from a slot of the table to the next, in elements.
        table_col_stride: from a token of the table to the next, in elements.
        slots: slots of the table.
        width: tokens of a slot.
        rows: rows of the bucket.
        num_pages: page table entries of a row that exist.
        page_stride: row stride of the page tables, in elements.
        ring_stride: row stride of the ring group locations, in elements.
        window: rows of a request; target verify only.
        lowest: the least of `offsets`.
        highest: the greatest of `offsets`.
        status: address of [1] int32, or-ed with what went wrong.
        sequence_lengths: addresses of the buffers of that name, a tuple over the steps; None where absent, and so on.
        row_req_pool_indices: as above.
        prefix_lengths: as above.
        compressed_lengths: as above.
        write_locs: as above.
        logical_positions: as above.
        pending_ring_slots: as above.
        ring_group_locs: as above.
        page_table: as above.
        offsets: what each step adds to a length, a tuple; 0 in every mode but decode.
        MODE: DECODE, TARGET_VERIFY or DRAFT_EXTEND.
        RATIO: tokens of a compressed group.
        PAGE_SIZE: tokens of a page.
        STEPS: the power of two at or above the number of steps.
        RING: the power of two at or above RATIO.
        BLOCK: page table entries that a program handles at a time.
        SCAN: requests that a program sums at a time; draft extend only.
    """
    row = tl.program_id(0)
    split = tl.program_id(1)
    # The steps of this program: from `begin` to before `finish`.
    share = tl.cdiv(len(offsets), tl.num_programs(2))
    begin = tl.program_id(2) * share
    finish = tl.minimum(begin + share, len(offsets))
    last_real = real.to(tl.int32)
    end = width.to(tl.int32)

    # The row's request.
    bits = row * 0
    request = row
    if MODE == TARGET_VERIFY:
        request = row // window.to(tl.int32)
    elif MODE == DRAFT_EXTEND:
        request, first, bits = _packed_request(
            row, req_pool_indices, extend_lens, slot_stride, extend_stride, flags, last_real, rows, SCAN
        )
    slot = _load_clipped(req_pool_indices, request, slot_stride, flags & _REQ_POOL_INDICES_INT64, last_real)

    # Its length and prefix.
    if MODE == DRAFT_EXTEND:
        # Here a length is a difference of two live values: exact first, clipped after.
        whole_length = _load_exact(seq_lens, request, seq_stride, flags & _SEQ_LENS_INT64, last_real)
        extend = _load_exact(extend_lens, request, extend_stride, flags & _EXTEND_LENS_INT64, last_real)
        whole_length = tl.maximum(whole_length, _LOWEST)
        start = tl.maximum(whole_length - tl.maximum(extend, 0), 0)
        prefix = tl.minimum(start, _HIGHEST).to(tl.int32)
        length = tl.minimum(tl.minimum(start, _HIGHEST) + 1 + (row - first), whole_length).to(tl.int32)
    else:
        length = _load_clipped(seq_lens, request, seq_stride, flags & _SEQ_LENS_INT64, last_real)
        prefix = length
        if MODE == TARGET_VERIFY:
            length += row - request * window.to(tl.int32) + 1
    real_row = (request < last_real) & ((slot != 0) | ((flags & _PADDING_BY_SLOT) == 0))
    known_slot = (slot >= 0) & (slot < slots.to(tl.int32))
    # A step is served if its length is from 1 to here.
    longest = tl.where(real_row & known_slot, end, 0)

    # As a rule every step can be served, and what follows from the contrary is left out.
    whole = (length + lowest.to(tl.int32) > 0) & (length + highest.to(tl.int32) <= longest)

    # A lane a step, where steps wait for memory: all of them together.
    step = tl.arange(0, STEPS)
    wanted = length + _pick(offsets, step).to(tl.int32)
    mine = tl.where(step < finish, step, -1) >= begin
    served = (wanted > 0) & (wanted <= longest)
    n = tl.where(served, wanted, 1)
    source = req_to_token.to(tl.pointer_type(tl.int32))
    table_row = slot.to(tl.int64) * table_row_stride
    if page_table is not None:
        # One walk over the row's pages serves all steps, as far as the longest of them is live.
        farthest = length + highest.to(tl.int32)
        if whole == 0:
            farthest = tl.max(tl.where(served & mine, n, 0), 0)
        pages = tl.minimum((farthest + PAGE_SIZE - 1) // PAGE_SIZE, num_pages.to(tl.int32))
        walked = source + table_row
        page_pitch = table_col_stride * PAGE_SIZE
        page = split * BLOCK + tl.arange(0, BLOCK)
        entry = tl.load(walked + page.to(tl.int64) * page_pitch, page < pages, other=0)
    if split == 0:
        if write_locs is not None:
            place = tl.where(served, table_row, 0) + (n - 1).to(tl.int64) * table_col_stride
            last = tl.load(source + place, mine & (n % RATIO == 0), other=0)

        for which in tl.static_range(len(offsets)):
            if (which >= begin) & (which < finish):
                reached = length + offsets[which].to(tl.int32)
                alive = (reached > 0) & (reached <= longest)
                row_length = tl.where(alive, reached, 1)
                row_slot = tl.where(alive, slot, 0)
                position = row_length - 1
                if sequence_lengths is not None:
                    tl.store(sequence_lengths[which].to(tl.pointer_type(tl.int32)) + row, row_length)
                if row_req_pool_indices is not None:
                    tl.store(row_req_pool_indices[which].to(tl.pointer_type(tl.int32)) + row, row_slot)
                if prefix_lengths is not None:
                    before = position if MODE == DECODE else tl.where(alive, tl.maximum(prefix, 0), 0)
                    tl.store(prefix_lengths[which].to(tl.pointer_type(tl.int32)) + row, before)
                if compressed_lengths is not None:
                    tl.store(compressed_lengths[which].to(tl.pointer_type(tl.int32)) + row, row_length // RATIO)
                if logical_positions is not None:
                    tl.store(logical_positions[which].to(tl.pointer_type(tl.int32)) + row, position)
                if pending_ring_slots is not None:
                    pending = row_slot.to(tl.int64) * RATIO + position % RATIO
                    tl.store(pending_ring_slots[which].to(tl.pointer_type(tl.int64)) + row, pending)
                if ring_group_locs is not None:
                    member = tl.arange(0, RING)
                    value = row_slot * RATIO + tl.maximum(position - (RATIO - 1 - member), 0) % RATIO
                    ring = ring_group_locs[which].to(tl.pointer_type(tl.int32)) + row * ring_stride
                    tl.store(ring + member, value, member < RATIO)

        if write_locs is not None:
            # A group stays within its page, so the slot of its last token names the group's compressed slot.
            written = _pick(write_locs, step).to(tl.pointer_type(tl.int32))
            tl.store(written + row, tl.maximum(last, 0) // RATIO, mine)
        if (whole == 0) | (bits != 0):
            if page_table is not None:
                # Inert rows show slot 0's first page.
                strays = tl.where(mine, tl.where(served, 0, 1), 0) * num_pages.to(tl.int32)
                spare = tl.load(source + step * 0, strays > 0, other=0)
                shown = _pick(page_table, step).to(tl.pointer_type(tl.int32))
                tl.store(shown + row * page_stride, tl.maximum(spare, 0) // PAGE_SIZE, strays > 0)
            fault = tl.where(wanted <= 0, _LENGTH_NOT_POSITIVE, tl.where(wanted > end, _LENGTH_EXCEEDS_TABLE, 0))
            fault = tl.where(known_slot, fault, _SLOT_OUT_OF_TABLE)
            fault = tl.where(mine, tl.where(real_row, fault, 0) | bits, 0)
            word = status.to(tl.pointer_type(tl.int32))
            tl.atomic_or(word + step * 0, fault, fault != 0, sem="relaxed")

    if page_table is not None:
        stride = tl.num_programs(1) * BLOCK
        for _ in range(split * BLOCK, pages, stride):
            value = tl.maximum(entry, 0) // PAGE_SIZE
            at = row * page_stride + page
            # The next block is on its way while this one is stored.
            ahead = page + stride
            entry = tl.load(walked + ahead.to(tl.int64) * page_pitch, ahead < pages, other=0)
            for which in tl.static_range(len(offsets)):
                if (which >= begin) & (which < finish):
                    reached = length + offsets[which].to(tl.int32)
                    held = tl.minimum((reached + PAGE_SIZE - 1) // PAGE_SIZE, pages)
                    held = tl.where(reached <= longest, held, 0)
                    tl.store(page_table[which].to(tl.pointer_type(tl.int32)) + at, value, page < held)
            page = ahead
