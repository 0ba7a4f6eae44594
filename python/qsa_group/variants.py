"""What a compiled kernel depends on, and what it is compiled from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

__all__ = ["FIELDS", "MODES", "JoinedVariant", "KernelVariant", "Variant"]

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
"""Names of a step's buffers in the order of the Rust core."""

MODES = {"decode": 0, "target_verify": 1, "draft_extend": 2}

_SCAN = 1024
"""Extend lengths that a program sums at a time; the core bounds a bucket's rows so that a block's sum fits 31 bits."""

_WARP = 32
"""Threads of a warp, on all NVIDIA GPUs."""


@dataclass(frozen=True)
class KernelVariant:
    """What a compiled kernel depends on.

    Attributes:
        mode: "decode", "target_verify" or "draft_extend".
        num_steps: steps of the group.
        buffers: names of the buffers that each step has.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page.
        block: page table entries that a program handles first.
        wide: page table entries that a program handles at a time after those.
        num_warps: warps of a program.
    """

    mode: str
    num_steps: int
    buffers: tuple[str, ...]
    compress_ratio: int
    page_size: int
    block: int
    wide: int
    num_warps: int

    @property
    def groups(self) -> tuple[KernelVariant, ...]:
        """The groups that the kernel takes."""
        return (self,)

    @property
    def fields(self) -> tuple[str, ...]:
        """The buffers of a step but its page table, in order."""
        return tuple(name for name in FIELDS[:-1] if name in self.buffers)

    @property
    def ring(self) -> int:
        """Lanes of a row: the power of two at or above its ring group locations, 1 without those."""
        return 1 << (self.compress_ratio - 1).bit_length() if "ring_group_locs" in self.buffers else 1

    @property
    def rows(self) -> int:
        """Rows of a head: as many as its threads have lanes for."""
        return max(_WARP * self.num_warps // self.ring, 1)

    def constants(self) -> dict[str, int]:
        """Values of the kernel's compile-time parameters."""
        return {
            "MODE": MODES[self.mode],
            "RATIO": self.compress_ratio,
            "PAGE_SIZE": self.page_size,
            "STEPS": self.num_steps,
            "ROWS": self.rows,
            "RING": self.ring,
            "BLOCK": self.block,
            "BLOCK_BITS": self.block.bit_length() - 1,
            "WIDE": self.wide,
            "SCAN": _SCAN,
            "FIELDS": len(self.fields),
            **{name.upper(): self.fields.index(name) if name in self.fields else -1 for name in FIELDS[:-1]},
        }

    def tuples(self) -> dict[str, int]:
        """Words of each parameter that is a tuple; None is passed for one without any."""
        return {
            "offsets": (self.num_steps + 1) // 2,
            "page_table": self.num_steps * ("page_table" in self.buffers),
            "fields": self.num_steps * len(self.fields),
        }

    def cut(self, rows: int, lanes: int) -> tuple[int, int, int]:
        """Programs of a launch over `rows` rows, those of them that are heads, and the log2 of `lanes`."""
        heads = 0 if self.mode == "draft_extend" else -(-rows // self.rows) * self.num_steps
        walkers = -(-rows * lanes // self.block) if "page_table" in self.buffers or not heads else 0
        return heads + walkers, heads, lanes.bit_length() - 1

    def nested(self, words: Iterator[Any]) -> dict[str, Any]:
        """The arguments of a launch by name, out of packed words: tuples, and None for one that is empty."""
        from .kernel import refresh_kernel

        tuples, constants = self.tuples(), self.constants()

        def take(name: str) -> Any:
            return tuple(next(words) for _ in range(tuples[name])) or None if name in tuples else next(words)

        return {name: constants[name] if name in constants else take(name) for name in refresh_kernel.arg_names}

    def arguments(self, words: tuple[Any, ...]) -> list[Any]:
        """Packed words as Triton's launchers take them."""
        return list(self.nested(iter(words)).values())

    def source(self) -> tuple[Any, dict[str, Any], dict[tuple[int, ...], Any]]:
        """The kernel, its signature without specialisation, and its compile-time values by place."""
        from .kernel import refresh_kernel

        types, constants = self.nested(_types()), self.constants()
        fixed = {name: value for name, value in types.items() if name in constants or value is None}
        signature = {name: "constexpr" if name in fixed else kind for name, kind in types.items()}
        return refresh_kernel, signature, {(list(types).index(name),): value for name, value in fixed.items()}


@dataclass(frozen=True)
class JoinedVariant:
    """A kernel of a launch over several groups.

    Attributes:
        groups: the groups, of the same warps.
    """

    groups: tuple[KernelVariant, ...]

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.groups[0].num_warps

    def _constants(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(group.constants().values()) for group in self.groups)

    def _nested(self, words: Iterator[Any]) -> tuple[Any, tuple[tuple[Any, ...], ...]]:
        begins = next(words)
        values = [(group.nested(words), group.constants()) for group in self.groups]
        return begins, tuple(
            tuple(value for name, value in of.items() if name not in constants) for of, constants in values
        )

    def arguments(self, words: tuple[Any, ...]) -> list[Any]:
        """As of `KernelVariant`."""
        return [*self._nested(iter(words)), self._constants()]

    def source(self) -> tuple[Any, dict[str, Any], dict[tuple[int, ...], Any]]:
        """As of `KernelVariant`."""
        from .joined_kernel import joined_kernel

        begins, groups = self._nested(_types())
        places: dict[tuple[int, ...], Any] = {(2,): self._constants()}
        for index, group in enumerate(groups):
            places.update({(1, index, place): None for place, value in enumerate(group) if value is None})
        types = tuple(tuple("constexpr" if value is None else value for value in group) for group in groups)
        return joined_kernel, {"begins": begins, "groups": types, "CONSTANTS": "constexpr"}, places


Variant = KernelVariant | JoinedVariant


def _types() -> Iterator[str]:
    """The type of every word."""
    return repeat("i64")
