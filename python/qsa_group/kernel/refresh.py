"""The kernel: one launch refreshes the buffers of one to three groups of steps.

Before a captured CUDA graph is replayed, small integer buffers that the graph reads must describe the requests that are
live now: lengths, positions, request slots, page tables. Each draft step has buffers of its own. The steps of a group
share everything but the addresses of these buffers and an offset, which is added to every length. `docs/semantics.md`
defines every value. The three modes differ in how a row finds its request, its length and its prefix (`rows.py`).

Programs. The first programs of a group are its heads. A head has one step and a block of rows, and writes all buffers
of the step apart from the pages of served rows, with a lane for each member of a row's ring group (`row_buffers.py`).
The other programs write the pages (`pages.py`). They divide the page table entries of all rows among them, and read
each entry of the request table once for all steps. Draft extend has no heads: what costs most there is the search for
a row's request, so that a program of a row's pages writes the row's other buffers, too.

Arguments. Every argument is an int64, addresses included, and nothing is specialised on values: one binary serves every
batch, padding, stride, dtype and alignment. Arguments lie in constant memory. Each 64 bytes of them that a program
touches cost a miss of the constant cache at every launch, and these misses can take as long as the reads of memory. So
numbers of 32 bits share a word, and words that are needed together stand together (`arguments.py`). On sm_90 the first
line of the constant cache has 48 bytes of arguments. In a launch of one group these are all that the programs of decode
pages need before their first reads; the misses of other lines fall into the time of these reads.

Order of instructions. A launch takes as long as a few reads of memory that depend on each other: the live batch, then
the request table, then the stores. The code keeps everything else out of this chain:

- Reads that do not depend on each other stand side by side, and all reads before the first store, because the compiler
  moves no read above a store.
- The way to the pages of a decode or verify row is short, so that the compiler computes under the reads whatever needs
  no memory.
- Within a block of instructions, up to the next branch, the compiler places instructions as it likes. It does not know
  how long a read takes that was started before the last branch. `write_row_pages` has two branches for that reason, and
  says at each what the branch keeps apart.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .group import unpack
from .numbers import high_half, low_half, scale
from .pages import load_pages, longest_length, span_of, write_further_pages, write_pages, write_row_pages
from .row_buffers import write_row_buffers
from .rows import load_request, request_of, resolve_packed_row, resolve_row

__all__ = ["refresh_kernel"]


@triton.jit
def _refresh_packed_row(program, group, arguments, CONSTANTS: tl.constexpr):
    """A program of draft extend: pages of one row and, in the row's first program, the row's other buffers."""
    NUM_STEPS: tl.constexpr = CONSTANTS.num_steps
    span = span_of(program, group.page_bits, CONSTANTS)
    row = span.row
    place = scale(row, group.page_stride)
    resolved = resolve_packed_row(row, group, CONSTANTS)
    source = group.table.address + scale(resolved.slot, group.table.slot_stride)
    if arguments.page_table is not None:
        bound = longest_length(resolved, arguments.offsets, CONSTANTS)
        entry = load_pages(source, span.page, bound, group, CONSTANTS)
    # Of a row's programs the first one has the wide block right behind the page lanes.
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
    """A head, in decode or target verify."""
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
    """One program of a group; `program` counts from the group's first one."""
    CONSTANTS: tl.constexpr = VARIANTS[INDEX]
    arguments = groups[INDEX]
    group = unpack(arguments)
    if CONSTANTS.mode == "draft_extend":
        _refresh_packed_row(program, group, arguments, CONSTANTS)
    elif program >= group.num_heads:
        # The programs of pages take longer than the heads, so that their code follows without a jump.
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
