"""The page tables: which pages a program has, how it reads them and how it writes them for every step."""

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

# First token of a page that no length reaches.
_NEVER = tl.constexpr((1 << 31) - 1)


class Span(NamedTuple):
    """The page table entries of one program.

    Every row has `1 << page_bits` page lanes for its first pages, and a program has a block of the lanes of all rows: a
    part of a row's lanes, all of them, or those of several rows. Where a row has further pages, the programs of its
    lanes divide them into wide blocks, which each of them takes in turn.
    """

    lane: Any
    """Block of places among the page lanes of all rows."""
    page: Any
    """Page of each lane."""
    row: Any
    """Row of the first lane."""
    begin: Any
    """First page of the program's first wide block."""
    stride: Any
    """Pages from one wide block of the program to its next."""


@triton.jit
def span_of(program, page_bits, CONSTANTS: tl.constexpr):
    """The `Span` of a program, counted from the first program that writes pages."""
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
    """A bound on the lengths with which a row's steps are served: within the table, and maybe negative.

    The bound exceeds them all where a step's length does not fit the table. Then pages are read that no step is given.
    """
    return tl.minimum(row.length + _largest_offset(offsets, CONSTANTS), row.longest)


@triton.jit
def page_id(entry, CONSTANTS: tl.constexpr):
    """The page of a KV slot, which is the request table's entry at the page's first token; 0 for a negative entry."""
    return divide(tl.maximum(entry, 0), CONSTANTS.page_size)


@triton.jit
def load_pages(source, page, bound, group, CONSTANTS: tl.constexpr):
    """Reads the request table at the first token of each page that exists and begins below `bound`, else 0.

    `source` is the address of the request's slot in the table.
    """
    first_token = page * CONSTANTS.page_size
    pointer = int32_pointer_at(source, scale(first_token, group.table.token_stride))
    return tl.load(pointer, (page < group.num_pages) & (first_token < bound), other=0)


@triton.jit
def _first_tokens(page, group, CONSTANTS: tl.constexpr):
    """The first token of each page that exists; a length that no row reaches for the others."""
    return tl.where(page < group.num_pages, page * CONSTANTS.page_size, _NEVER)


class _PageStore(NamedTuple):
    """Where a step stores a block of pages, and how many tokens of the row it serves."""

    pointers: Any
    num_tokens: Any
    """The step's length, 0 or less where the step is not served."""


@triton.jit
def _page_store(step: tl.constexpr, place, row, arguments):
    """The `_PageStore` of a step, `place` bytes into its page table.

    As few instructions as can be: with many steps they take longer than the reads.
    """
    length = row.length + step_offset(arguments.offsets, step)
    return _PageStore(
        pointers=int32_pointer_at(arguments.page_table[step], place),
        num_tokens=tl.where(length <= row.longest, length, 0),
    )


@triton.jit
def write_pages(place, page, entry, row, group, arguments, CONSTANTS: tl.constexpr):
    """Writes a block of pages to the page table of every step that has tokens in them.

    `place` is where the row begins in each page table, in bytes; `entry` is what `load_pages` read.
    """
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    first_token = _first_tokens(page, group, CONSTANTS)
    place += 4 * page.to(tl.int64)
    value = page_id(entry, CONSTANTS)
    for step in tl.static_range(NUM_STEPS):
        store = _page_store(step, place, row, arguments)
        tl.store(store.pointers, value, first_token < store.num_tokens)


@triton.jit
def write_further_pages(span, source, place, row, group, arguments, CONSTANTS: tl.constexpr):
    """Writes the pages of a row behind its lanes, in wide blocks that keep many reads under way.

    The next block is read before one is written. `source` is as in `load_pages`, `place` as in `write_pages`.
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
    """Writes a program's share of the pages in decode or target verify; heads are not counted in `program`."""
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    live = group.live
    table = group.table
    span = span_of(program, group.page_bits, CONSTANTS)
    page = span.page
    # The row is computed in every lane, though a program may have one row only. From the scalar the compiler would
    # derive addresses in uniform registers, whose instructions wait for each other about twice as long.
    row = span.lane >> group.page_bits
    request = request_of(row, live, CONSTANTS)
    live_request = load_request(request, live)
    # Padding has no pages but the one that heads write. The question is asked here, behind the first reads, because a
    # branch ends a block of instructions: the compiler does not fetch arguments above the branch that are used below,
    # but fetches them while the reads are under way.
    if span.row < (live.num_real * live.window if CONSTANTS.mode == "target_verify" else live.num_real):
        resolved = resolve_row(row, request, live_request, group, CONSTANTS)
        # Between the arrival of the slot and the length and the read of the table there are only their lower halves,
        # unclipped: where a step is served, the lower half is the whole number. The read stays within the table, and
        # covers all pages of a served step. Whatever it reads for others is not stored.
        length = live_request.length.low + row_offset(row, request, live, CONSTANTS)
        first_token = page * CONSTANTS.page_size
        entry = tl.load(
            int32_pointer(
                table.address
                + scale(first_token, table.token_stride)
                + scale(live_request.slot.low, table.slot_stride)
            ),
            (page < group.num_pages)
            & is_in_table(live_request.slot, table)
            & (first_token - _largest_offset(arguments.offsets, CONSTANTS) < length),
            other=0,
        )
        # All that the stores need besides the pages is computed above the next branch, and so under the read: below the
        # branch the compiler would wait for the pages first. What is kept of a step is a length and no mask, since the
        # masks of many steps would take all predicate registers through the loop.
        place = scale(row, group.page_stride) + 4 * page.to(tl.int64)
        first_token = _first_tokens(page, group, CONSTANTS)
        pointers = ()
        num_tokens = ()
        for step in tl.static_range(NUM_STEPS):
            store = _page_store(step, place, resolved, arguments)
            pointers += (store.pointers,)  # type: ignore[assignment]
            num_tokens += (store.num_tokens,)  # type: ignore[assignment]
        if span.begin < group.num_pages:
            _write_further_pages_of(span, group, arguments, CONSTANTS)
        value = page_id(entry, CONSTANTS)
        for step in tl.static_range(NUM_STEPS):
            tl.store(pointers[step], value, first_token < num_tokens[step])  # type: ignore[misc]


@triton.jit
def _write_further_pages_of(span, group, arguments, CONSTANTS: tl.constexpr):
    """`write_further_pages` of the row `span.row`, which has all page lanes of the program."""
    live = group.live
    request = request_of(span.row, live, CONSTANTS)
    row = resolve_row(span.row, request, load_request(request, live), group, CONSTANTS)
    source = group.table.address + scale(row.slot, group.table.slot_stride)
    write_further_pages(span, source, scale(span.row, group.page_stride), row, group, arguments, CONSTANTS)
