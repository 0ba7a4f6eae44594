"""The argument words of one group, in the order in which `rust/core/src/launch.rs` packs them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

__all__ = ["ARGUMENT_NAMES", "BUFFER_NAMES", "GroupArguments", "argument_lengths", "nest_words"]

BUFFER_NAMES = (
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
"""Names of a step's buffers, in the order of the Rust core."""

ARGUMENT_NAMES = (
    "seq_lens",
    "req_pool_indices",
    "live_strides",
    "flags_and_real",
    "high_limits",
    "heads_and_window",
    "req_to_token",
    "table_strides",
    "slots_and_width",
    "offsets",
    "output_strides",
    "rows_and_pages",
    "page_table",
    "status",
    "extend_lens",
    "extend_stride_and_limit",
    "fields",
)

GroupArguments: Any = namedtuple("GroupArguments", ARGUMENT_NAMES)  # type: ignore[misc]


def argument_lengths(num_steps: int, buffers: Collection[str]) -> list[int | None]:
    lengths = {
        "offsets": (num_steps + 1) // 2,
        "page_table": num_steps * ("page_table" in buffers),
        "fields": num_steps * sum(name != "page_table" for name in buffers),
    }
    return [lengths.get(name) for name in ARGUMENT_NAMES]


def nest_words(words: Iterator[Any], num_steps: int, buffers: Collection[str]) -> Any:
    return GroupArguments(
        *(
            next(words) if length is None else tuple(islice(words, length)) or None
            for length in argument_lengths(num_steps, buffers)
        )
    )
