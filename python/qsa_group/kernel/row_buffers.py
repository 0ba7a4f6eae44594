"""All buffers of a step, apart from the pages of served rows.

Lanes have two indices, a row and a member of the row's compressed group. `x + member * 0` gives a value of a row, or a
pointer, the shape of a block of lanes. `tl.where(condition, row, n) < n` is `condition & (row < n)` with one comparison
fewer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .bits import LENGTH_EXCEEDS_TABLE, LENGTH_NOT_POSITIVE
from .numbers import divide, int32_pointer, int32_pointer_at, remainder, scale
from .pages import page_id, step_offset

__all__ = ["write_row_buffers"]


@triton.jit
def write_row_buffers(step: tl.constexpr, row, member, resolved, group, arguments, CONSTANTS: tl.constexpr):
    """Writes a step's buffers, and the status word, for a block of rows.

    Each lane has a row and a member of the row's ring group. The lane of member 0 writes what a row has one of. A lane
    whose row is past the bucket writes nothing. `resolved` is the `Row` of each lane.

    The one page of an inert row is written here, and the pages of a served row by other programs, so that no page table
    entry has two writers.
    """
    RATIO: tl.constexpr = CONSTANTS.compress_ratio
    RING_SIZE: tl.constexpr = CONSTANTS.ring_size
    PLACES: tl.constexpr = CONSTANTS.places
    # Place of the step's first buffer in `fields`.
    STEP: tl.constexpr = step * CONSTANTS.num_fields
    table = group.table
    fields = arguments.fields
    single = tl.where(member == 0, row, group.num_rows) < group.num_rows
    wanted = resolved.length + step_offset(arguments.offsets, step) + member * 0
    served = (wanted > 0) & (wanted <= resolved.longest)
    length = tl.where(served, wanted, 1)
    position = length - 1
    slot = tl.where(served, resolved.slot, 0)
    # Both reads stand above the first store, since the compiler moves no read above a store.
    if PLACES.write_locs >= 0:
        # A compressed group stays within its page, so that the KV slot of its last token, divided, is the group's slot.
        last_token = scale(slot, table.slot_stride) + scale(position, table.token_stride)
        last_slot = tl.load(
            int32_pointer_at(table.address, last_token), single & (remainder(length, RATIO) == 0), other=0
        )
    if arguments.page_table is not None:
        # An inert row shows the first page of request slot 0.
        inert = single & (tl.where(served, 0, group.num_pages) > 0)
        inert_slot = tl.load(int32_pointer(table.address) + member * 0, inert, other=0)
    if PLACES.sequence_lengths >= 0:
        tl.store(int32_pointer(fields[STEP + PLACES.sequence_lengths]) + row, length, single)
    if PLACES.row_req_pool_indices >= 0:
        tl.store(int32_pointer(fields[STEP + PLACES.row_req_pool_indices]) + row, slot, single)
    if PLACES.prefix_lengths >= 0:
        prefix = position if CONSTANTS.mode == "decode" else tl.where(served, tl.maximum(resolved.prefix, 0), 0)
        tl.store(int32_pointer(fields[STEP + PLACES.prefix_lengths]) + row, prefix, single)
    if PLACES.compressed_lengths >= 0:
        tl.store(int32_pointer(fields[STEP + PLACES.compressed_lengths]) + row, divide(length, RATIO), single)
    if PLACES.logical_positions >= 0:
        tl.store(int32_pointer(fields[STEP + PLACES.logical_positions]) + row, position, single)
    if PLACES.pending_ring_slots >= 0:
        pending = slot.to(tl.int64) * RING_SIZE + remainder(position, RING_SIZE)
        tl.store(fields[STEP + PLACES.pending_ring_slots].to(tl.pointer_type(tl.int64)) + row, pending, single)
    if PLACES.ring_group_locs >= 0:
        group_position = tl.maximum(position - (RATIO - 1 - member), 0)
        ring = int32_pointer_at(fields[STEP + PLACES.ring_group_locs], scale(row, group.ring_stride)) + member
        is_member = tl.where(member < RATIO, row, group.num_rows) < group.num_rows
        tl.store(ring, slot * RING_SIZE + remainder(group_position, RING_SIZE), is_member)
    if PLACES.write_locs >= 0:
        compressed = divide(tl.maximum(last_slot, 0), RATIO)
        tl.store(int32_pointer(fields[STEP + PLACES.write_locs]) + row, compressed, single)
    if arguments.page_table is not None:
        first_page = int32_pointer_at(arguments.page_table[step], scale(row, group.page_stride))
        tl.store(first_page, page_id(inert_slot, CONSTANTS), inert)
    fault = tl.where(wanted <= 0, LENGTH_NOT_POSITIVE, tl.where(served, 0, LENGTH_EXCEEDS_TABLE))
    fault = tl.where(single, tl.where(resolved.longest > 0, fault, 0) | resolved.status, 0)
    tl.atomic_or(int32_pointer(arguments.status) + member * 0, fault, fault != 0, sem="relaxed")
