"""The kernel's arguments for one group, as the Rust core describes them (`rust/core/src/launch/arguments.rs`)."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import qsa_group._core as _core

__all__ = ["ARGUMENT_NAMES", "GroupArguments", "argument_lengths", "nest_arguments"]

ARGUMENT_NAMES = tuple(name for name, _ in _core.kernel_arguments(1, _core.FIELDS))
"""The arguments of a group, in order. Each is an int64, or a tuple of them."""

GroupArguments: Any = namedtuple("GroupArguments", ARGUMENT_NAMES)  # type: ignore[misc]
"""The arguments of a group as the kernel reads them. An absent argument is None."""


def argument_lengths(num_steps: int, buffers: Collection[str]) -> list[int | None]:
    """The words of each argument: None for a single word, n for a tuple of n words, 0 for an absent argument.

    Args:
        num_steps: steps of the group.
        buffers: names of the buffers that each step has.
    """
    return [length for _, length in _core.kernel_arguments(num_steps, list(buffers))]


def nest_arguments(words: Iterator[Any], num_steps: int, buffers: Collection[str]) -> Any:
    """The `GroupArguments` of a group, from the next words of a launch."""
    return GroupArguments(
        *(
            next(words) if length is None else tuple(islice(words, length)) or None
            for length in argument_lengths(num_steps, buffers)
        )
    )
