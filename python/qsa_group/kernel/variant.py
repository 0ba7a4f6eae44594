"""What a compiled kernel depends on, and what it is compiled from."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from .arguments import BUFFER_NAMES, GroupArguments, nest_words
from .tiling import Tiling

__all__ = ["MODES", "Constants", "Grid", "GroupVariant", "KernelVariant", "Places"]

MODES = ("decode", "target_verify", "draft_extend")
_SCAN = 1024
_WARP = 32

Places: Any = namedtuple("Places", BUFFER_NAMES[:-1])  # type: ignore[misc]


@dataclass(frozen=True)
class Constants:
    mode: str
    num_steps: int
    compress_ratio: int
    page_size: int
    num_fields: int
    places: Any
    head_rows: int
    ring_lanes: int
    block: int
    block_bits: int
    wide: int
    scan: int


class Grid(NamedTuple):
    programs: int
    heads: int
    page_bits: int


@dataclass(frozen=True)
class GroupVariant:
    mode: str
    num_steps: int
    buffers: tuple[str, ...]
    compress_ratio: int
    page_size: int
    tiling: Tiling

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for name in BUFFER_NAMES[:-1] if name in self.buffers)

    @property
    def ring_lanes(self) -> int:
        return 1 << (self.compress_ratio - 1).bit_length() if "ring_group_locs" in self.buffers else 1

    @property
    def head_rows(self) -> int:
        return max(_WARP * self.tiling.num_warps // self.ring_lanes, 1)

    def constants(self) -> Constants:
        fields = self.fields
        return Constants(
            mode=self.mode,
            num_steps=self.num_steps,
            compress_ratio=self.compress_ratio,
            page_size=self.page_size,
            num_fields=len(fields),
            places=Places(*(fields.index(name) if name in fields else -1 for name in BUFFER_NAMES[:-1])),
            head_rows=self.head_rows,
            ring_lanes=self.ring_lanes,
            block=self.tiling.block,
            block_bits=self.tiling.block.bit_length() - 1,
            wide=self.tiling.wide,
            scan=_SCAN,
        )

    def grid(self, rows: int, lanes: int) -> Grid:
        heads = 0 if self.mode == "draft_extend" else -(-rows // self.head_rows) * self.num_steps
        page_programs = -(-rows * lanes // self.tiling.block) if "page_table" in self.buffers or not heads else 0
        return Grid(heads + page_programs, heads, lanes.bit_length() - 1)


@dataclass(frozen=True)
class KernelVariant:
    groups: tuple[GroupVariant, ...]

    @property
    def num_warps(self) -> int:
        return self.groups[0].tiling.num_warps

    def arguments(self, words: Iterable[Any]) -> list[Any]:
        remaining = iter(words)
        begins = next(remaining) if len(self.groups) > 1 else None
        groups = tuple(nest_words(remaining, group.num_steps, group.buffers) for group in self.groups)
        return [begins, groups, tuple(group.constants() for group in self.groups)]

    def source(self) -> tuple[Any, dict[str, Any], dict[tuple[int, ...], Any]]:
        from .refresh import refresh_kernel

        begins, groups, variants = self.arguments(repeat("i64"))
        constexprs: dict[tuple[int, ...], Any] = {(2,): variants}
        if begins is None:
            constexprs[0,] = None
        for index, group in enumerate(groups):
            constexprs.update({(1, index, place): None for place, value in enumerate(group) if value is None})
        types = tuple(GroupArguments(*("constexpr" if value is None else value for value in group)) for group in groups)
        signature = {"begins": begins or "constexpr", "groups": types, "VARIANTS": "constexpr"}
        return refresh_kernel, signature, constexprs
