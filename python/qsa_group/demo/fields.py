"""Names of the buffers of a step, in the order of docs/semantics.md."""

from __future__ import annotations

__all__ = ["FIELDS", "SHARED_INDEX_FIELDS"]

FIELDS = (
    "sequence_lengths",
    "row_req_pool_indices",
    "prefix_lengths",
    "compressed_lengths",
    "write_locs",
    "logical_positions",
    "pending_ring_slots",
    "ring_group_locs",
    "page_table",
)
"""All buffers of a step."""

SHARED_INDEX_FIELDS = ("sequence_lengths", "row_req_pool_indices", "logical_positions")
"""What a draft step reads when the steps share the indices of the first pass."""
