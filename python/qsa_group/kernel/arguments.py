"""The argument words of one group, in the order in which the Rust core packs them (`rust/core/src/launch.rs`).

Every word is 8 bytes. Two numbers of 32 bits share a word, the lower half first.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

__all__ = ["ARGUMENT_NAMES", "BUFFER_NAMES", "GroupArguments", "argument_lengths", "nest_arguments"]

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

# Addresses are those of the first element. Strides are uint32, in bytes; all other halves are int32.
ARGUMENT_NAMES = (
    "seq_lens",  # address of the live lengths
    "req_pool_indices",  # address of the request slots
    "live_strides",  # strides of seq_lens and of req_pool_indices
    "flags_and_real",  # flags (`bits.py`); requests that are not padding by count
    "high_limits",  # elements of seq_lens and of req_pool_indices that have a high half, which those of int32 have not
    "heads_and_window",  # programs that are heads; rows of a request in target verify, 1 in the other modes
    "req_to_token",  # address of the request table
    "table_strides",  # from a slot of the table to the next; from a token to the next
    "slots_and_width",  # slots of the table; tokens of a slot
    "offsets",  # what each step adds to a length, two steps a word; 0 in every mode but decode
    "output_strides",  # from a row of the page tables to the next; the same of the ring group locations
    "rows_and_pages",  # rows of the bucket; page table entries of a row that exist
    "page_table",  # address of each step's page table
    "status",  # address of the status word
    "extend_lens",  # address of the rows of each request; read in draft extend only
    "extend_stride_and_limit",  # stride of extend_lens; its elements that have a high half
    "fields",  # addresses of the other buffers, those of a step after each other
)
"""The arguments of a group, in order."""

GroupArguments: Any = namedtuple("GroupArguments", ARGUMENT_NAMES)  # type: ignore[misc]
"""The arguments of a group as the kernel reads them; an argument that is absent is None."""


def argument_lengths(num_steps: int, buffers: Collection[str]) -> list[int | None]:
    """The words of each argument: None for a plain word, n for a tuple of n words, 0 where the argument is absent.

    Args:
        num_steps: steps of the group.
        buffers: names of the buffers that each step has.
    """
    tuples = {
        "offsets": (num_steps + 1) // 2,
        "page_table": num_steps * ("page_table" in buffers),
        "fields": num_steps * sum(name != "page_table" for name in buffers),
    }
    return [tuples.get(name) for name in ARGUMENT_NAMES]


def nest_arguments(words: Iterator[Any], num_steps: int, buffers: Collection[str]) -> Any:
    """The `GroupArguments` that the next words of a launch are; takes no word more."""
    return GroupArguments(
        *(
            next(words) if length is None else tuple(islice(words, length)) or None
            for length in argument_lengths(num_steps, buffers)
        )
    )
