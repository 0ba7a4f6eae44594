"""What a compiled kernel depends on, and what Triton needs to compile and to start that kernel."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import qsa_group._core as _core

from .arguments import GroupArguments, nest_arguments
from .tiling import Tiling

__all__ = ["Constants", "Grid", "GroupVariant", "KernelVariant", "Places"]

_FIELD_NAMES = tuple(name for name in _core.FIELDS if name != "page_table")
"""All buffers but the page table."""

_SCAN = 1024
"""Extend lengths that a program sums at a time; the core bounds a bucket's rows so that a block's sum fits 31 bits."""

_WARP = 32
"""Threads of a warp, on all NVIDIA GPUs."""

Places: Any = namedtuple("Places", _FIELD_NAMES)  # type: ignore[misc]
"""The place of each buffer among those of its step in the argument `fields`; -1 for a buffer that is absent."""


@dataclass(frozen=True)
class Constants:
    """Compile-time constants of a group.

    A dataclass, since Triton 3.5 to 3.7 drop the field names of a named tuple that stands in a compile-time tuple.

    Attributes:
        mode: "decode", "target_verify" or "draft_extend".
        num_steps: steps of the group.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page.
        ring_size: entries of a request's pending ring.
        num_fields: buffers of a step in the argument `fields`.
        places: the `Places` of these buffers.
        head_rows: rows of a head, a power of two.
        ring_lanes: lanes of a row in a head, a power of two.
        block: page table entries that a program handles first, a lane each; a power of two.
        block_bits: base 2 logarithm of `block`.
        wide: page table entries that a program handles at a time after those; a power of two.
        scan: requests that a program sums at a time in draft extend; a power of two.
    """

    mode: str
    num_steps: int
    compress_ratio: int
    page_size: int
    ring_size: int
    num_fields: int
    places: Any
    head_rows: int
    ring_lanes: int
    block: int
    block_bits: int
    wide: int
    scan: int


class Grid(NamedTuple):
    """The programs of a group in a launch."""

    programs: int
    """All programs of the group."""
    heads: int
    """The first programs of the group, which write everything but the pages of served rows; 0 in draft extend."""
    page_bits: int
    """Base 2 logarithm of a row's page lanes."""


@dataclass(frozen=True)
class GroupVariant:
    """What the code for one group depends on.

    Attributes:
        mode: "decode", "target_verify" or "draft_extend".
        num_steps: steps of the group.
        buffers: names of the buffers that each step has.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page.
        ring_size: entries of a request's pending ring.
        tiling: block sizes and warps. The tiling's lanes do not count: variants that differ in lanes alone are equal.
    """

    mode: str
    num_steps: int
    buffers: tuple[str, ...]
    compress_ratio: int
    page_size: int
    ring_size: int
    tiling: Tiling

    @property
    def ring_lanes(self) -> int:
        """Lanes of a row in a head: the power of two at or above the row's ring group locations, 1 without those."""
        return 1 << (self.compress_ratio - 1).bit_length() if "ring_group_locs" in self.buffers else 1

    @property
    def head_rows(self) -> int:
        """Rows of a head: as many as its threads have lanes for."""
        return max(_WARP * self.tiling.num_warps // self.ring_lanes, 1)

    def constants(self) -> Constants:
        """The compile-time constants of the group."""
        present = [name for name in _FIELD_NAMES if name in self.buffers]
        return Constants(
            mode=self.mode,
            num_steps=self.num_steps,
            compress_ratio=self.compress_ratio,
            page_size=self.page_size,
            ring_size=self.ring_size,
            num_fields=len(present),
            places=Places(*(present.index(name) if name in present else -1 for name in _FIELD_NAMES)),
            head_rows=self.head_rows,
            ring_lanes=self.ring_lanes,
            block=self.tiling.block,
            block_bits=self.tiling.block.bit_length() - 1,
            wide=self.tiling.wide,
            scan=_SCAN,
        )

    def grid(self, rows: int, lanes: int) -> Grid:
        """The programs of a launch.

        Args:
            rows: rows of the bucket.
            lanes: page lanes of a row, `Tiling.lanes`.
        """
        heads = 0 if self.mode == "draft_extend" else -(-rows // self.head_rows) * self.num_steps
        others = -(-rows * lanes // self.tiling.block) if "page_table" in self.buffers or not heads else 0
        return Grid(programs=heads + others, heads=heads, page_bits=lanes.bit_length() - 1)


@dataclass(frozen=True)
class KernelVariant:
    """What a compiled kernel depends on, besides the GPU.

    Attributes:
        groups: one to three groups that share a launch, with the same number of warps.
    """

    groups: tuple[GroupVariant, ...]

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.groups[0].tiling.num_warps

    def arguments(self, words: Iterable[Any]) -> list[Any]:
        """The arguments of `refresh_kernel` as Triton's launchers and its interpreter take them.

        Args:
            words: the packed words of a launch, as int64, without scratch.
        """
        remaining = iter(words)
        begins = next(remaining) if len(self.groups) > 1 else None
        groups = tuple(nest_arguments(remaining, group.num_steps, group.buffers) for group in self.groups)
        return [begins, groups, tuple(group.constants() for group in self.groups)]

    def source(self) -> tuple[Any, dict[str, Any], dict[tuple[int, ...], Any]]:
        """What `triton.compiler.ASTSource` takes: the kernel, its signature, its compile-time values by their paths.

        Every word is an int64, so that nothing is specialised on values. An absent argument is a compile-time None.
        """
        from .refresh import refresh_kernel

        begins, groups, constants = self.arguments(repeat("i64"))
        values: dict[tuple[int, ...], Any] = {(2,): constants}
        if begins is None:
            values[0,] = None
        values |= {
            (1, index, place): None
            for index, group in enumerate(groups)
            for place, argument in enumerate(group)
            if argument is None
        }
        types = tuple(GroupArguments(*(argument or "constexpr" for argument in group)) for group in groups)
        return refresh_kernel, {"begins": begins or "constexpr", "groups": types, "VARIANTS": "constexpr"}, values
