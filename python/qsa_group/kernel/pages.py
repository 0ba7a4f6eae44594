"""The page tables: which pages a program has, and how it reads these once and writes them for every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import divide, high_half, int32_pointer, int32_pointer_at, low_half, scale
from .rows import is_in_table, load_request, request_of, resolve_row, row_offset

__all__ = [
    "Span",
    "load_pages",
    "longest_length",
    "page_id",
    "span_of",
    "step_offset",
    "write_further_pages",
    "write_pages",
    "write_row_pages",
]

# A first token that no length reaches.
_NEVER = tl.constexpr((1 << 31) - 1)


class Span(NamedTuple):
    """The page table entries of one program.

    Each row has a page lane for each of its first `1 << page_bits` pages. A program has a block of the page lanes of
    all rows: some of one row, all of one row, or all of several rows. The further pages of a row are cut into wide
    blocks, which the programs of the row's page lanes take in turn.
    """

    lane: Any
    """The program's block among the page lanes of all rows."""
    page: Any
    """The page of each lane."""
    row: Any
    """The row of the first lane."""
    begin: Any
    """The first page of the program's first wide block."""
    stride: Any
    """Pages from one wide block of the program to the program's next."""


@triton.jit
def span_of(program, page_bits, CONSTANTS: tl.constexpr):
    """The `Span` of a program; `program` counts from the first one that writes pages."""
    BLOCK: tl.constexpr = CONSTANTS.block
    WIDE: tl.constexpr = CONSTANTS.wide
    num_lanes = 1 << page_bits
    lane = program * BLOCK + tl.arange(0, BLOCK)
    part = (program * BLOCK & (num_lanes - 1)) // BLOCK
    begin = num_lanes + part * WIDE
    return Span(
        lane=lane,
        page=lane & (num_lanes - 1),
        row=program * BLOCK >> page_bits,
        begin=begin,
        stride=WIDE << (page_bits - CONSTANTS.block_bits),
    )


@triton.jit
def step_offset(offsets, step: tl.constexpr):
    """What a step adds to a length. Two steps share a word."""
    return low_half(offsets[step // 2]) if step % 2 == 0 else high_half(offsets[step // 2])


@triton.jit
def _largest_offset(offsets, CONSTANTS: tl.constexpr):
    """The most that a step adds to a length."""
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    largest = step_offset(offsets, 0)
    for step in tl.static_range(1, NUM_STEPS):
        largest = tl.maximum(largest, step_offset(offsets, step))
    return largest


@triton.jit
def longest_length(row, offsets, CONSTANTS: tl.constexpr):
    """An upper bound of the lengths with which a row's steps are served: within the table, and maybe negative.

    Where a step's length does not fit the table, the bound exceeds the lengths of the steps that are served. Then more
    pages are read than are written.
    """
    return tl.minimum(row.length + _largest_offset(offsets, CONSTANTS), row.longest)


@triton.jit
def page_id(entry, CONSTANTS: tl.constexpr):
    """The page that a request table entry names, read at the page's first token; page 0 for a negative entry."""
    return divide(tl.maximum(entry, 0), CONSTANTS.page_size)


@triton.jit
def load_pages(source, page, bound, group, CONSTANTS: tl.constexpr):
    """Reads the request table at the first token of each page.

    `source` is the address of the request's slot in the table. A page that does not exist, or begins at `bound` or
    later, is not read and gives 0.
    """
    first_token = page * CONSTANTS.page_size
    pointer = int32_pointer_at(source, scale(first_token, group.table.token_stride))
    return tl.load(pointer, (page < group.num_pages) & (first_token < bound), other=0)


@triton.jit
def _page_begins(page, group, CONSTANTS: tl.constexpr):
    """The first token of each page; of a page that does not exist, one that no length reaches."""
    return tl.where(page < group.num_pages, page * CONSTANTS.page_size, _NEVER)


class _PageStore(NamedTuple):
    """Where a step stores a block of pages, and which of them."""

    pointers: Any
    length: Any
    """The step stores the pages that begin below its length, which is 0 or less where the step is not served."""


@triton.jit
def _page_store(step: tl.constexpr, place, row, arguments):
    """The `_PageStore` of a step, for pages that stand `place` bytes into the step's page table.

    There are as few instructions as can be, since those of many steps take longer than the reads.
    """
    length = row.length + step_offset(arguments.offsets, step)
    return _PageStore(
        pointers=int32_pointer_at(arguments.page_table[step], place),
        length=tl.where(length <= row.longest, length, 0),
    )


@triton.jit
def write_pages(place, page, entry, row, group, arguments, CONSTANTS: tl.constexpr):
    """Writes a block of pages of a row to the page table of every step that has tokens in them.

    `place` is where the row begins in each page table, in bytes; `entry` is what `load_pages` read.
    """
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    begins = _page_begins(page, group, CONSTANTS)
    page_place = place + 4 * page.to(tl.int64)
    value = page_id(entry, CONSTANTS)
    for step in tl.static_range(NUM_STEPS):
        store = _page_store(step, page_place, row, arguments)
        tl.store(store.pointers, value, begins < store.length)


@triton.jit
def write_further_pages(span, source, place, row, group, arguments, CONSTANTS: tl.constexpr):
    """Writes the further pages of a row, those behind its page lanes, as far as they are the program's.

    Wide blocks keep many reads under way, and each block is read before the one before it is written. `source` is as in
    `load_pages`, `place` as in `write_pages`.
    """
    WIDE: tl.constexpr = CONSTANTS.wide
    bound = longest_length(row, arguments.offsets, CONSTANTS)
    stop = tl.minimum(tl.cdiv(bound, CONSTANTS.page_size), group.num_pages)
    if span.begin < stop:
        page = span.begin + tl.arange(0, WIDE)
        ahead = load_pages(source, page, bound, group, CONSTANTS)
        for _ in range(span.begin, stop, span.stride):
            entry = ahead
            ahead = load_pages(source, page + span.stride, bound, group, CONSTANTS)
            write_pages(place, page, entry, row, group, arguments, CONSTANTS)
            page += span.stride


@triton.jit
def write_row_pages(program, group, arguments, CONSTANTS: tl.constexpr):
    """Writes a program's share of the pages in decode or target verify.

    `program` counts from the first one behind the heads. Two branches keep three parts apart: the reads of the live
    batch; the read of the request table, with all that can be computed before that read arrives; the stores.
    """
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    live = group.live
    table = group.table
    span = span_of(program, group.page_bits, CONSTANTS)
    page = span.page
    # Each lane computes its row, even where all lanes have the same one. From a row that is known to be the same the
    # compiler would compute in uniform registers, and instructions on those wait for each other about twice as long.
    row = span.lane >> group.page_bits
    request = request_of(row, live, CONSTANTS)
    live_request = load_request(request, live)
    # The first branch. Rows of padding have no pages but the one that heads write, and stand behind all other rows. The
    # question stands here, behind the reads of the live batch, because the compiler does not move the fetch of an
    # argument above a branch: the arguments that are used below are fetched while the reads are under way.
    if span.row < (live.num_real * live.window if CONSTANTS.mode == "target_verify" else live.num_real):
        resolved = resolve_row(row, request, live_request, group, CONSTANTS)
        # The read of the table waits for the slot and the length, so that few instructions stand between. These use the
        # lower halves alone, unclipped: where a step is served, a lower half is the whole number. The read stays within
        # the table, and covers all pages of every served step. What is read for other steps is not stored.
        length = live_request.length.low + row_offset(row, request, live, CONSTANTS)
        first_token = page * CONSTANTS.page_size
        entry = tl.load(
            int32_pointer(
                table.address + scale(first_token, table.token_stride) + scale(live_request.slot.low, table.slot_stride)
            ),
            (page < group.num_pages)
            & is_in_table(live_request.slot, table)
            & (first_token - _largest_offset(arguments.offsets, CONSTANTS) < length),
            other=0,
        )
        # All that the stores need besides the entries is computed here, while the read is under way: below the second
        # branch the compiler would let the computation wait for the read. A step keeps a length instead of a mask,
        # since masks of many steps would take all predicate registers through the loop below.
        place = scale(row, group.page_stride) + 4 * page.to(tl.int64)
        begins = _page_begins(page, group, CONSTANTS)
        pointers = ()
        lengths = ()
        for step in tl.static_range(NUM_STEPS):
            store = _page_store(step, place, resolved, arguments)
            pointers += (store.pointers,)  # type: ignore[assignment]
            lengths += (store.length,)  # type: ignore[assignment]
        # The second branch. Only a row with more pages than page lanes enters the loop.
        if span.begin < group.num_pages:
            _write_further_pages_of(span, group, arguments, CONSTANTS)
        value = page_id(entry, CONSTANTS)
        for step in tl.static_range(NUM_STEPS):
            tl.store(pointers[step], value, begins < lengths[step])


@triton.jit
def _write_further_pages_of(span, group, arguments, CONSTANTS: tl.constexpr):
    """`write_further_pages` in decode or target verify.

    A row with further pages has at least a block of page lanes, so that all lanes of the program are those of one row.
    """
    live = group.live
    request = request_of(span.row, live, CONSTANTS)
    row = resolve_row(span.row, request, load_request(request, live), group, CONSTANTS)
    source = group.table.address + scale(row.slot, group.table.slot_stride)
    write_further_pages(span, source, scale(span.row, group.page_stride), row, group, arguments, CONSTANTS)
