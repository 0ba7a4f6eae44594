"""The Triton kernel, and nothing else.

A launch has two kinds of programs. The first ones, the heads, write all that a row has but the pages of its tokens:
each has one step and a block of rows, a lane for each entry of a row's ring group. The others write those pages: the
ones of a row divide its pages among them, and read each entry of the request table once for all steps. In draft extend,
where to find a row's request costs most, there are no heads, and one program does all of a row. Otherwise the modes
differ in one place: how a row finds its request, length and prefix.

Every argument is an int64, addresses too, and nothing is specialised on values, so that one binary serves every batch,
padding, stride, dtype and alignment. `rust/core/src/launch.rs` packs the arguments in the order of the signature: what
it takes to read the live vectors, what it takes to read the pages of a decode step, what it takes to write them, then
the rest, a step's buffers after each other. So a program touches few lines of the constant cache: each is a miss at
every launch, and these misses took as long as the memory reads do. The first line, which on sm_90 has 48 bytes of
arguments, holds all that programs of decode pages need for their first reads, in a launch of one group; the misses of
the others fall into the time of the reads.

The time of a refresh is a few memory latencies: the live vectors, then the request table, then the stores. So the way
of a decode or verify row, as far as its pages have lanes, is short: the compiler places what needs no memory under the
loads, loads that do not need each other are started together, and all before the first store, which no later load
overtakes. Up to the next branch the compiler may place any instruction anywhere, and it does not know how long a load
from before the last branch takes. So of the two branches on that way the first keeps later arguments from being fetched
before the first reads, and the second keeps what the stores need from being computed after the wait for the pages.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["DECODE", "DRAFT_EXTEND", "TARGET_VERIFY", "refresh_group", "refresh_kernel"]

DECODE = tl.constexpr(0)
TARGET_VERIFY = tl.constexpr(1)
DRAFT_EXTEND = tl.constexpr(2)

# Bits of `flags`.
_PADDING_BY_SLOT = tl.constexpr(1)
# Where in `flags` the power of two stands that are a row's first pages.
_PAGE_BITS = tl.constexpr(8)

# Bits of the status word, as `ReplayStatus`.
_SLOT_OUT_OF_TABLE = tl.constexpr(1)
_LENGTH_NOT_POSITIVE = tl.constexpr(2)
_LENGTH_EXCEEDS_TABLE = tl.constexpr(4)
_ROWS_EXCEED_BUCKET = tl.constexpr(8)
_EXTEND_LENGTH_NEGATIVE = tl.constexpr(16)

# Below any length that an offset could lift to 1: offsets end at 2**29, widths below 2**30 (`layout.rs`), so that all
# lengths are int32 once they are clipped.
_LOWEST = tl.constexpr(-(1 << 30))
# Above any width, and with any offset added still an int32.
_HIGHEST = tl.constexpr((1 << 30) + 1)
# Where a page begins that no length reaches.
_NEVER = tl.constexpr((1 << 31) - 1)


@triton.jit
def _int32s(address):
    """An address as a pointer to int32. The interpreter takes a null address for an int32, hence the first step."""
    return address.to(tl.int64).to(tl.pointer_type(tl.int32))


@triton.jit
def _int32s_at(address, ahead):
    """The same, `ahead` bytes further on."""
    return _int32s(address.to(tl.int64) + ahead)


@triton.jit
def _times(index, stride):
    """`index * stride` as int64, of an int32 that is not negative and an unsigned stride of 32 bits, in bytes.

    What comes of a negative index, a slot that was never allocated, must be masked.
    """
    return (index.to(tl.uint32).to(tl.uint64) * stride.to(tl.uint32).to(tl.uint64)).to(tl.int64)


@triton.jit
def _load_halves(vector, index, limit):
    """Both halves of element `index` of a live vector; 0 from `limit` on.

    A vector is its address, its stride in bytes, and up to where its elements have a high half: `limit` or 0, since its
    dtype is known at run time only.
    """
    address, stride, high_limit = vector
    place = _int32s_at(address, _times(index, stride))
    low = tl.load(place, index < limit, other=0)
    high = tl.load(place + 1, index < high_limit, other=0)
    return low, high


@triton.jit
def _clip(vector, low, high):
    """An element of two halves as int32: at most `_HIGHEST`, and `_LOWEST` for what is below all int32."""
    _address, _stride, high_limit = vector
    fits = (high == (low >> 31)) | (high_limit == 0)
    return tl.where(fits, tl.minimum(low, _HIGHEST), tl.where(high < 0, _LOWEST, _HIGHEST))


@triton.jit
def _load_clipped(vector, index, limit):
    """Element `index` as int32, as `_clip` has it."""
    low, high = _load_halves(vector, index, limit)
    return _clip(vector, low, high)


@triton.jit
def _load_exact(vector, index, limit):
    """Element `index` as int64."""
    _address, _stride, high_limit = vector
    low, high = _load_halves(vector, index, limit)
    high = tl.where(high_limit == 0, low >> 31, high)
    return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _packed_request(row, req_pool_indices, extend_lens, flags, real, rows, SCAN: tl.constexpr):
    """The request of a packed row by a prefix sum over the extend lengths, a block of requests at a time.

    Requests that end at or before the row are counted and their lengths summed: the first number is the row's request,
    the second its first row. A row after the packed ones gets request `real`. Returns (request, first row, bits).
    """
    # Sums are clipped to one past the bucket, which keeps every partial sum within 31 bits and rows past it out of it.
    ceiling = rows + 1
    request = row * 0
    first = row * 0
    total = row * 0
    negative = row * 0
    for start in range(0, real, SCAN):
        index = start + tl.arange(0, SCAN)
        length = _load_clipped(extend_lens, index, real)
        if flags & _PADDING_BY_SLOT:
            slots = _load_clipped(req_pool_indices, index, real)
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
def _in_table(slot, slots):
    """Whether the lower half of a slot is one of the table's."""
    return slot.to(tl.uint32) < slots.to(tl.uint32)


@triton.jit
def _request(row, window, MODE: tl.constexpr):
    """The request of a decode or verify row."""
    return row // window if MODE == TARGET_VERIFY else row


@triton.jit
def _read(request, live):
    """The halves of a request's slot and length: (slot, above, low, high)."""
    vectors, numbers = live
    seq_lens, req_pool_indices, _extend_lens = vectors
    _flags, real, _window = numbers
    slot, above = _load_halves(req_pool_indices, request, real)
    low, high = _load_halves(seq_lens, request, real)
    return slot, above, low, high


@triton.jit
def _longest(request, slot, above, live, slots, width):
    """The longest row that a request can show, 0 for padding and for a slot out of the table; and its status bits."""
    _vectors, numbers = live
    flags, real, _window = numbers
    real_row = (request < real) & (((slot | above) != 0) | ((flags & _PADDING_BY_SLOT) == 0))
    known_slot = (above == 0) & _in_table(slot, slots)
    longest = tl.where(real_row & known_slot, width, 0)
    return longest, tl.where(real_row, tl.where(known_slot, 0, _SLOT_OUT_OF_TABLE), 0)


@triton.jit
def _lead(row, request, live, MODE: tl.constexpr):
    """What a row has beyond its request's live length."""
    _vectors, numbers = live
    _flags, _real, window = numbers
    return row - request * window + 1 if MODE == TARGET_VERIFY else row * 0


@triton.jit
def _resolve(row, request, halves, live, slots, width, MODE: tl.constexpr):
    """What a decode or verify row shows: (slot, length before a step's offset, prefix, longest, bits).

    A step is served if its length is from 1 to `longest`, which is 0 for padding and for slots out of the table; only
    where it is above 0 does the slot mean anything.
    """
    vectors, _numbers = live
    seq_lens, _req_pool_indices, _extend_lens = vectors
    slot, above, low, high = halves
    prefix = _clip(seq_lens, low, high)
    longest, bits = _longest(request, slot, above, live, slots, width)
    return slot, prefix + _lead(row, request, live, MODE), prefix, longest, bits


@triton.jit
def _resolve_packed(row, live, slots, width, rows, SCAN: tl.constexpr):
    """The same of a row of draft extend."""
    vectors, numbers = live
    seq_lens, req_pool_indices, extend_lens = vectors
    flags, real, _window = numbers
    request, first, bits = _packed_request(row, req_pool_indices, extend_lens, flags, real, rows, SCAN)
    slot, above = _load_halves(req_pool_indices, request, real)
    # Here a length is a difference of two live values: exact first, clipped after.
    whole = _load_exact(seq_lens, request, real)
    extend = _load_exact(extend_lens, request, real)
    whole = tl.maximum(whole, _LOWEST)
    start = tl.maximum(whole - tl.maximum(extend, 0), 0)
    prefix = tl.minimum(start, _HIGHEST).to(tl.int32)
    length = tl.minimum(tl.minimum(start, _HIGHEST) + 1 + (row - first), whole).to(tl.int32)
    longest, own_bits = _longest(request, slot, above, live, slots, width)
    return slot, length, prefix, longest, bits | own_bits


@triton.jit
def _divide(value, divisor: tl.constexpr):
    """`value // divisor` of an int32 that is not negative, which takes fewer instructions than a signed division."""
    return (value.to(tl.uint32) // divisor).to(tl.int32)


@triton.jit
def _remainder(value, divisor: tl.constexpr):
    """`value % divisor`, as `_divide`."""
    return (value.to(tl.uint32) % divisor).to(tl.int32)


@triton.jit
def _low(word):
    """The lower half of a parameter, as int32."""
    return word.to(tl.int64).to(tl.int32)


@triton.jit
def _high(word):
    """The upper half of a parameter, as int32.

    Unsigned, since the interpreter takes a number from 2**31 on, and below 2**32, for a negative one of 32 bits.
    """
    return (word.to(tl.uint64) >> 32).to(tl.int32)


@triton.jit
def _offset(offsets, step: tl.constexpr):
    """What a step adds to a length."""
    return _low(offsets[step // 2]) if step % 2 == 0 else _high(offsets[step // 2])


@triton.jit
def _largest(offsets, STEPS: tl.constexpr):
    """The most that a step adds to a length."""
    largest = _offset(offsets, 0)
    for which in tl.static_range(1, STEPS):
        largest = tl.maximum(largest, _offset(offsets, which))
    return largest


@triton.jit
def _reach(length, longest, offsets, STEPS: tl.constexpr):
    """No length that a step is served with is above this, and it is never past the table; it may be negative.

    It is above them all where a step's length does not fit the table: then pages are read that no step is given.
    """
    return tl.minimum(length + _largest(offsets, STEPS), longest)


@triton.jit
def _read_pages(walked, page, col_stride, num_pages, reach, PAGE_SIZE: tl.constexpr):
    """The request table at the first token of each page that exists and starts before token `reach`, else 0."""
    begin = page * PAGE_SIZE
    return tl.load(_int32s_at(walked, _times(begin, col_stride)), (page < num_pages) & (begin < reach), other=0)


@triton.jit
def _begins(page, num_pages, PAGE_SIZE: tl.constexpr):
    """The first token of each page that exists."""
    return tl.where(page < num_pages, page * PAGE_SIZE, _NEVER)


@triton.jit
def _page_store(which: tl.constexpr, page_table, offsets, place, length, longest):
    """Where a step keeps pages, `place` bytes into its page table, and its row's length, 0 if it is not served.

    As few instructions as can be: with many steps they take longer than the reads.
    """
    target = length + _offset(offsets, which)
    return _int32s_at(page_table[which], place), tl.where(target <= longest, target, 0)


@triton.jit
def _page_of(entry, PAGE_SIZE: tl.constexpr):
    """The page id of the request table's entry at a page's first token."""
    return _divide(tl.maximum(entry, 0), PAGE_SIZE)


@triton.jit
def _write_pages(
    page_table, offsets, at, page, entry, length, longest, num_pages, PAGE_SIZE: tl.constexpr, STEPS: tl.constexpr
):
    """Writes a block of pages to the page tables of the steps that have tokens in them."""
    begins = _begins(page, num_pages, PAGE_SIZE)
    place = at + 4 * page.to(tl.int64)
    value = _page_of(entry, PAGE_SIZE)
    for which in tl.static_range(STEPS):
        pointers, served = _page_store(which, page_table, offsets, place, length, longest)
        tl.store(pointers, value, begins < served)


@triton.jit
def _write_beyond(
    page_table,
    offsets,
    source,
    at,
    begin,
    stride,
    col_stride,
    length,
    longest,
    num_pages,
    PAGE_SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Pages of a row from `begin` on in wide blocks: many reads at a time, the next block's while one is stored."""
    reach = _reach(length, longest, offsets, STEPS)
    stop = tl.minimum(tl.cdiv(reach, PAGE_SIZE), num_pages)
    if begin < stop:
        page = begin + tl.arange(0, WIDE)
        ahead = _read_pages(source, page, col_stride, num_pages, reach, PAGE_SIZE)
        for _ in range(begin, stop, stride):
            entry = ahead
            ahead = _read_pages(source, page + stride, col_stride, num_pages, reach, PAGE_SIZE)
            _write_pages(page_table, offsets, at, page, entry, length, longest, num_pages, PAGE_SIZE, STEPS)
            page += stride


@triton.jit
def _span(program, page_bits, BLOCK: tl.constexpr, BLOCK_BITS: tl.constexpr, WIDE: tl.constexpr):
    """What a program has of the page tables.

    Returns its lanes' places among those of all rows, its lanes' pages, its first row, its first page beyond those that
    have lanes, and from there the way to the next.
    """
    covered = 1 << page_bits
    lane = program * BLOCK + tl.arange(0, BLOCK)
    part = (program * BLOCK & (covered - 1)) // BLOCK
    begin = covered + part * WIDE
    return lane, lane & (covered - 1), program * BLOCK >> page_bits, begin, WIDE << (page_bits - BLOCK_BITS)


@triton.jit
def _write_row_pages(
    program,
    page_bits,
    live,
    request_table,
    sizes,
    offsets,
    page_table,
    MODE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BITS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A program's share of the pages of decode or verify rows.

    A lane a page: of each row as many first pages as `page_bits` says; others, if there are any, in a loop.
    """
    table, slots, width = request_table
    table_stride, col_stride, page_stride, _ring_stride, _rows, num_pages = sizes
    _vectors, numbers = live
    _flags, real, window = numbers
    lanes, page, own_row, begin, stride = _span(program, page_bits, BLOCK, BLOCK_BITS, WIDE)
    # Where all lanes have one row, the compiler still cannot tell, and keeps to vector instructions; it would take
    # uniform ones otherwise, and those wait for each other about twice as long.
    row = lanes >> page_bits
    request = _request(row, window, MODE)
    halves = _read(request, live)
    # Padding has no pages but those that heads write. The question is asked here because it ends a block of
    # instructions: arguments that are used below it are not fetched above it, but while the reads are under way.
    if own_row < (real * window if MODE == TARGET_VERIFY else real):
        _slot, length, _prefix, longest, _bits = _resolve(row, request, halves, live, slots, width, MODE)
        # Of the live vectors only their lower halves, as they come, stand before this read. It stays within the table
        # and covers all that a served row has; what it reads beyond that is not stored.
        slot, _above, low, _high = halves
        rough = low + _lead(row, request, live, MODE)
        first = page * PAGE_SIZE
        entry = tl.load(
            _int32s(table + _times(first, col_stride) + _times(slot, table_stride)),
            (page < num_pages) & _in_table(slot, slots) & (first - _largest(offsets, STEPS) < rough),
            other=0,
        )
        # All that the stores need but the value stands before the next question, so that it waits for no read. A length
        # for a mask, since masks would take all predicate registers through the loop.
        place = _times(row, page_stride) + 4 * page.to(tl.int64)
        begins = _begins(page, num_pages, PAGE_SIZE)
        stores = ()
        for which in tl.static_range(STEPS):
            store = _page_store(which, page_table, offsets, place, length, longest)
            stores += (store,)  # type: ignore[assignment]
        if begin < num_pages:
            own_request = _request(own_row, window, MODE)
            far = _resolve(own_row, own_request, _read(own_request, live), live, slots, width, MODE)
            far_slot, far_length, _far_prefix, far_longest, _far_bits = far
            _write_beyond(
                page_table,
                offsets,
                table + _times(far_slot, table_stride),
                _times(own_row, page_stride),
                begin,
                stride,
                col_stride,
                far_length,
                far_longest,
                num_pages,
                PAGE_SIZE,
                STEPS,
                WIDE,
            )
        value = _page_of(entry, PAGE_SIZE)
        for which in tl.static_range(STEPS):
            pointers, served = stores[which]  # type: ignore[var-annotated]
            tl.store(pointers, value, begins < served)


@triton.jit
def _write_fields(
    which: tl.constexpr,
    row,
    member,
    resolved,
    sizes,
    table,
    offsets,
    page_table,
    status,
    fields,
    MODE: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    FIELDS: tl.constexpr,
    SEQUENCE_LENGTHS: tl.constexpr,
    ROW_REQ_POOL_INDICES: tl.constexpr,
    PREFIX_LENGTHS: tl.constexpr,
    COMPRESSED_LENGTHS: tl.constexpr,
    WRITE_LOCS: tl.constexpr,
    LOGICAL_POSITIONS: tl.constexpr,
    PENDING_RING_SLOTS: tl.constexpr,
    RING_GROUP_LOCS: tl.constexpr,
):
    """All of a step's buffers but the pages of its tokens. A lane has a `row` and a `member` of its ring group.

    One lane of a row writes what a row has one of. Rows past the bucket write nothing. Inert rows get their one page
    here, served rows theirs where pages are written, so that no entry has two writers.
    """
    slot, length, prefix, longest, bits = resolved
    table_stride, col_stride, page_stride, ring_stride, rows, num_pages = sizes
    single = tl.where(member == 0, row, rows) < rows
    wanted = length + _offset(offsets, which) + member * 0
    served = (wanted > 0) & (wanted <= longest)
    reached = tl.where(served, wanted, 1)
    position = reached - 1
    shown = tl.where(served, slot, 0)
    if WRITE_LOCS >= 0:
        # A group stays within its page, so the slot of its last token names the group's compressed slot.
        at = _times(shown, table_stride) + _times(position, col_stride)
        last = tl.load(_int32s_at(table, at), single & (_remainder(reached, RATIO) == 0), other=0)
    if page_table is not None:
        # Inert rows show slot 0's first page.
        inert = single & (tl.where(served, 0, num_pages) > 0)
        spare = tl.load(_int32s(table) + member * 0, inert, other=0)
    if SEQUENCE_LENGTHS >= 0:
        tl.store(_int32s(fields[which * FIELDS + SEQUENCE_LENGTHS]) + row, reached, single)
    if ROW_REQ_POOL_INDICES >= 0:
        tl.store(_int32s(fields[which * FIELDS + ROW_REQ_POOL_INDICES]) + row, shown, single)
    if PREFIX_LENGTHS >= 0:
        before = position if MODE == DECODE else tl.where(served, tl.maximum(prefix, 0), 0)
        tl.store(_int32s(fields[which * FIELDS + PREFIX_LENGTHS]) + row, before, single)
    if COMPRESSED_LENGTHS >= 0:
        tl.store(_int32s(fields[which * FIELDS + COMPRESSED_LENGTHS]) + row, _divide(reached, RATIO), single)
    if LOGICAL_POSITIONS >= 0:
        tl.store(_int32s(fields[which * FIELDS + LOGICAL_POSITIONS]) + row, position, single)
    if PENDING_RING_SLOTS >= 0:
        pending = shown.to(tl.int64) * RATIO + _remainder(position, RATIO)
        tl.store(fields[which * FIELDS + PENDING_RING_SLOTS].to(tl.pointer_type(tl.int64)) + row, pending, single)
    if RING_GROUP_LOCS >= 0:
        back = tl.maximum(position - (RATIO - 1 - member), 0)
        ring = _int32s_at(fields[which * FIELDS + RING_GROUP_LOCS], _times(row, ring_stride)) + member
        inside = tl.where(member < RATIO, row, rows) < rows
        tl.store(ring, shown * RATIO + _remainder(back, RATIO), inside)
    if WRITE_LOCS >= 0:
        compressed = _divide(tl.maximum(last, 0), RATIO)
        tl.store(_int32s(fields[which * FIELDS + WRITE_LOCS]) + row, compressed, single)
    if page_table is not None:
        first_page = _int32s_at(page_table[which], _times(row, page_stride))
        tl.store(first_page, _page_of(spare, PAGE_SIZE), inert)
    fault = tl.where(wanted <= 0, _LENGTH_NOT_POSITIVE, tl.where(served, 0, _LENGTH_EXCEEDS_TABLE))
    fault = tl.where(single, tl.where(longest > 0, fault, 0) | bits, 0)
    tl.atomic_or(_int32s(status) + member * 0, fault, fault != 0, sem="relaxed")


@triton.jit
def refresh_group(
    program,
    words,
    MODE: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SCAN: tl.constexpr,
    FIELDS: tl.constexpr,
    SEQUENCE_LENGTHS: tl.constexpr,
    ROW_REQ_POOL_INDICES: tl.constexpr,
    PREFIX_LENGTHS: tl.constexpr,
    COMPRESSED_LENGTHS: tl.constexpr,
    WRITE_LOCS: tl.constexpr,
    LOGICAL_POSITIONS: tl.constexpr,
    PENDING_RING_SLOTS: tl.constexpr,
    RING_GROUP_LOCS: tl.constexpr,
):
    """What one of a group's programs does; `words` are the arguments of `refresh_kernel` in its order."""
    (
        seq_lens,
        req_pool_indices,
        live_strides,
        flags_and_real,
        high_limits,
        heads_and_window,
        req_to_token,
        table_strides,
        slots_and_width,
        offsets,
        output_strides,
        rows_and_pages,
        page_table,
        status,
        extend_lens,
        extend_stride_and_limit,
        fields,
    ) = words
    flags = _low(flags_and_real)
    real = _high(flags_and_real)
    heads = _low(heads_and_window)
    window = _high(heads_and_window)
    table = req_to_token.to(tl.int64)
    table_stride = _low(table_strides)
    col_stride = _high(table_strides)
    slots = _low(slots_and_width)
    width = _high(slots_and_width)
    page_stride = _low(output_strides)
    ring_stride = _high(output_strides)
    rows = _low(rows_and_pages)
    num_pages = _high(rows_and_pages)
    page_bits = flags >> _PAGE_BITS
    sizes = (table_stride, col_stride, page_stride, ring_stride, rows, num_pages)
    live = (
        (
            (seq_lens, _low(live_strides), _low(high_limits)),
            (req_pool_indices, _high(live_strides), _high(high_limits)),
            (extend_lens, _low(extend_stride_and_limit), _high(extend_stride_and_limit)),
        ),
        (flags, real, window),
    )
    if MODE == DRAFT_EXTEND:
        # To search for a row's request costs most here, so that a program does all of a row.
        _lane, page, row, begin, stride = _span(program, page_bits, BLOCK, BLOCK_BITS, WIDE)
        place = _times(row, page_stride)
        resolved = _resolve_packed(row, live, slots, width, rows, SCAN)
        slot, length, _prefix, longest, _bits = resolved
        source = table + _times(slot, table_stride)
        if page_table is not None:
            reach = _reach(length, longest, offsets, STEPS)
            entry = _read_pages(source, page, col_stride, num_pages, reach, PAGE_SIZE)
        # The row's first program writes the rest.
        if begin == 1 << page_bits:
            member = tl.arange(0, RING)
            for which in tl.static_range(STEPS):
                _write_fields(
                    which,
                    row + member * 0,
                    member,
                    resolved,
                    sizes,
                    table,
                    offsets,
                    page_table,
                    status,
                    fields,
                    MODE,
                    RATIO,
                    PAGE_SIZE,
                    FIELDS,
                    SEQUENCE_LENGTHS,
                    ROW_REQ_POOL_INDICES,
                    PREFIX_LENGTHS,
                    COMPRESSED_LENGTHS,
                    WRITE_LOCS,
                    LOGICAL_POSITIONS,
                    PENDING_RING_SLOTS,
                    RING_GROUP_LOCS,
                )
        if page_table is not None:
            if begin < num_pages:
                _write_beyond(
                    page_table,
                    offsets,
                    source,
                    place,
                    begin,
                    stride,
                    col_stride,
                    length,
                    longest,
                    num_pages,
                    PAGE_SIZE,
                    STEPS,
                    WIDE,
                )
            _write_pages(page_table, offsets, place, page, entry, length, longest, num_pages, PAGE_SIZE, STEPS)
    elif program >= heads:
        # The longer way first, so that no jump leads to it.
        if page_table is not None:
            _write_row_pages(
                program - heads,
                page_bits,
                live,
                (table, slots, width),
                sizes,
                offsets,
                page_table,
                MODE,
                PAGE_SIZE,
                STEPS,
                BLOCK,
                BLOCK_BITS,
                WIDE,
            )
    else:
        # A program has a step and a block of rows.
        lane = tl.arange(0, ROWS * RING)
        head_row = program // STEPS * ROWS + lane // RING
        head_request = _request(head_row, window, MODE)
        head_resolved = _resolve(head_row, head_request, _read(head_request, live), live, slots, width, MODE)
        for which in tl.static_range(STEPS):
            if program % STEPS == which:
                _write_fields(
                    which,
                    head_row,
                    lane % RING,
                    head_resolved,
                    sizes,
                    table,
                    offsets,
                    page_table,
                    status,
                    fields,
                    MODE,
                    RATIO,
                    PAGE_SIZE,
                    FIELDS,
                    SEQUENCE_LENGTHS,
                    ROW_REQ_POOL_INDICES,
                    PREFIX_LENGTHS,
                    COMPRESSED_LENGTHS,
                    WRITE_LOCS,
                    LOGICAL_POSITIONS,
                    PENDING_RING_SLOTS,
                    RING_GROUP_LOCS,
                )


@triton.jit
def refresh_kernel(
    seq_lens,
    req_pool_indices,
    live_strides,
    flags_and_real,
    high_limits,
    heads_and_window,
    req_to_token,
    table_strides,
    slots_and_width,
    offsets,
    output_strides,
    rows_and_pages,
    page_table,
    status,
    extend_lens,
    extend_stride_and_limit,
    fields,
    MODE: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    RING: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_BITS: tl.constexpr,
    WIDE: tl.constexpr,
    SCAN: tl.constexpr,
    FIELDS: tl.constexpr,
    SEQUENCE_LENGTHS: tl.constexpr,
    ROW_REQ_POOL_INDICES: tl.constexpr,
    PREFIX_LENGTHS: tl.constexpr,
    COMPRESSED_LENGTHS: tl.constexpr,
    WRITE_LOCS: tl.constexpr,
    LOGICAL_POSITIONS: tl.constexpr,
    PENDING_RING_SLOTS: tl.constexpr,
    RING_GROUP_LOCS: tl.constexpr,
):
    """Refreshes the buffers of a group of steps.

    Args:
        seq_lens: address of [batch] int32 or int64, live lengths.
        req_pool_indices: address of [batch] int32 or int64, request slots.
        live_strides: two uint32, the lower half first: strides of `seq_lens` and of `req_pool_indices`, in bytes.
        flags_and_real: two int32: the padding rule, and from the ninth bit on the power of two that are a row's first
            pages, which have a lane each; live requests that are not padding by count.
        high_limits: two int32: up to which element `seq_lens` and `req_pool_indices` have upper halves, so the live
            requests again where they are int64, and 0 where they are int32.
        heads_and_window: two int32: programs that are heads, rows of a request in target verify.
        req_to_token: address of [slots, width] int32, KV slot of each token.
        table_strides: two uint32: from a slot of the table to the next, from a token to the next, in bytes.
        slots_and_width: two int32: slots of the table, tokens of a slot.
        offsets: what each step adds to a length, a tuple of pairs of int32; 0 in every mode but decode.
        output_strides: two uint32: row strides of the page tables and of the ring group locations, in bytes.
        rows_and_pages: two int32: rows of the bucket, page table entries of a row that exist.
        page_table: addresses of the page tables, a tuple over the steps; None where absent.
        status: address of [1] int32, or-ed with what went wrong.
        extend_lens: address of [batch] int32 or int64, rows of each request; read in draft extend only.
        extend_stride_and_limit: a uint32 and an int32: stride of `extend_lens` in bytes; as `high_limits`.
        fields: addresses of the other buffers, a tuple over the steps and, within a step, over the buffers that are
            there; None if there are none.
        MODE: DECODE, TARGET_VERIFY or DRAFT_EXTEND.
        RATIO: tokens of a compressed group.
        PAGE_SIZE: tokens of a page.
        STEPS: steps of the group.
        ROWS: rows of a head, a power of two.
        RING: the power of two at or above RATIO; 1 without ring group locations.
        BLOCK: page table entries that a program handles first, a lane each.
        BLOCK_BITS: the power of two that BLOCK is.
        WIDE: page table entries that it handles at a time after those.
        SCAN: requests that a program sums at a time; draft extend only.
        FIELDS: buffers of a step in `fields`.
        SEQUENCE_LENGTHS: place of that buffer among a step's in `fields`; -1 where absent, and so on.
        ROW_REQ_POOL_INDICES: as above.
        PREFIX_LENGTHS: as above.
        COMPRESSED_LENGTHS: as above.
        WRITE_LOCS: as above.
        LOGICAL_POSITIONS: as above.
        PENDING_RING_SLOTS: as above.
        RING_GROUP_LOCS: as above.
    """
    refresh_group(
        tl.program_id(0),
        (
            seq_lens,
            req_pool_indices,
            live_strides,
            flags_and_real,
            high_limits,
            heads_and_window,
            req_to_token,
            table_strides,
            slots_and_width,
            offsets,
            output_strides,
            rows_and_pages,
            page_table,
            status,
            extend_lens,
            extend_stride_and_limit,
            fields,
        ),
        MODE,
        RATIO,
        PAGE_SIZE,
        STEPS,
        ROWS,
        RING,
        BLOCK,
        BLOCK_BITS,
        WIDE,
        SCAN,
        FIELDS,
        SEQUENCE_LENGTHS,
        ROW_REQ_POOL_INDICES,
        PREFIX_LENGTHS,
        COMPRESSED_LENGTHS,
        WRITE_LOCS,
        LOGICAL_POSITIONS,
        PENDING_RING_SLOTS,
        RING_GROUP_LOCS,
    )
