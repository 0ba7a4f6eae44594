"""The Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from .bits import PAGE_BITS_SHIFT
from .numbers import LiveVector, high_half, low_half, scale
from .pages import load_pages, longest_length, span_of, write_further_pages, write_pages, write_row_pages
from .row_buffers import write_row_buffers
from .rows import Group, LiveBatch, Table, load_request, request_of, resolve_packed_row, resolve_row

__all__ = ["refresh_kernel"]


@triton.jit
def _unpack(arguments):
    """The `Group` of a group's arguments: every number of 32 bits out of its word."""
    flags = low_half(arguments.flags_and_real)
    num_real = high_half(arguments.flags_and_real)
    num_heads = low_half(arguments.heads_and_window)
    window = high_half(arguments.heads_and_window)
    return Group(
        num_heads=num_heads,
        table=Table(
            address=arguments.req_to_token.to(tl.int64),
            slot_stride=low_half(arguments.table_strides),
            token_stride=high_half(arguments.table_strides),
            num_slots=low_half(arguments.slots_and_width),
            width=high_half(arguments.slots_and_width),
        ),
        page_stride=low_half(arguments.output_strides),
        ring_stride=high_half(arguments.output_strides),
        num_rows=low_half(arguments.rows_and_pages),
        num_pages=high_half(arguments.rows_and_pages),
        page_bits=flags >> PAGE_BITS_SHIFT,
        live=LiveBatch(
            seq_lens=LiveVector(
                address=arguments.seq_lens,
                stride=low_half(arguments.live_strides),
                high_limit=low_half(arguments.high_limits),
            ),
            req_pool_indices=LiveVector(
                address=arguments.req_pool_indices,
                stride=high_half(arguments.live_strides),
                high_limit=high_half(arguments.high_limits),
            ),
            extend_lens=LiveVector(
                address=arguments.extend_lens,
                stride=low_half(arguments.extend_stride_and_limit),
                high_limit=high_half(arguments.extend_stride_and_limit),
            ),
            flags=flags,
            num_real=num_real,
            window=window,
        ),
    )


@triton.jit
def _refresh_packed_row(program, group, arguments, CONSTANTS: tl.constexpr):
    """A program of draft extend: pages of one row and, in the row's first program, all of the row's other buffers."""
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    span = span_of(program, group.page_bits, CONSTANTS)
    row = span.row
    place = scale(row, group.page_stride)
    resolved = resolve_packed_row(row, group, CONSTANTS)
    source = group.table.address + scale(resolved.slot, group.table.slot_stride)
    if arguments.page_table is not None:
        bound = longest_length(resolved, arguments.offsets, CONSTANTS)
        entry = load_pages(source, span.page, bound, group, CONSTANTS)
    if span.begin == 1 << group.page_bits:
        member = tl.arange(0, CONSTANTS.ring_lanes)
        for step in tl.static_range(NUM_STEPS):
            write_row_buffers(step, row + member * 0, member, resolved, group, arguments, CONSTANTS)
    if arguments.page_table is not None:
        if span.begin < group.num_pages:
            write_further_pages(span, source, place, resolved, group, arguments, CONSTANTS)
        write_pages(place, span.page, entry, resolved, group, arguments, CONSTANTS)


@triton.jit
def _refresh_head(program, group, arguments, CONSTANTS: tl.constexpr):
    """A head of decode or target verify: one step's buffers of a block of rows."""
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    lane = tl.arange(0, CONSTANTS.head_rows * CONSTANTS.ring_lanes)
    row = program // NUM_STEPS * CONSTANTS.head_rows + lane // CONSTANTS.ring_lanes
    request = request_of(row, group.live, CONSTANTS)
    resolved = resolve_row(row, request, load_request(request, group.live), group, CONSTANTS)
    for step in tl.static_range(NUM_STEPS):
        if program % NUM_STEPS == step:
            write_row_buffers(step, row, lane % CONSTANTS.ring_lanes, resolved, group, arguments, CONSTANTS)


@triton.jit
def _refresh_group(program, groups, VARIANTS: tl.constexpr, INDEX: tl.constexpr):
    """One of a group's programs."""
    CONSTANTS: tl.constexpr = VARIANTS[INDEX]
    arguments = groups[INDEX]
    group = _unpack(arguments)
    if CONSTANTS.mode == "draft_extend":
        _refresh_packed_row(program, group, arguments, CONSTANTS)
    elif program >= group.num_heads:
        # The longer way stands first, so that no jump leads to it.
        if arguments.page_table is not None:
            write_row_pages(program - group.num_heads, group, arguments, CONSTANTS)
    else:
        _refresh_head(program, group, arguments, CONSTANTS)


@triton.jit
def refresh_kernel(begins, groups, VARIANTS: tl.constexpr):
    """Refreshes the buffers of one to three groups.

    Args:
        begins: two int32 in one word: the programs at which the second and the third group begin; None for one group.
        groups: a `GroupArguments` for each group.
        VARIANTS: a `Constants` for each group.
    """
    program = tl.program_id(0)
    if begins is None:
        _refresh_group(program, groups, VARIANTS, 0)
    else:
        second = low_half(begins)
        third = high_half(begins)
        if program < second:
            _refresh_group(program, groups, VARIANTS, 0)
        elif program < third:
            _refresh_group(program - second, groups, VARIANTS, 1)
        elif len(VARIANTS) > 2:
            _refresh_group(program - third, groups, VARIANTS, 2)
