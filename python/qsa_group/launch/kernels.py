"""What the backends that run the Triton kernel share: which kernel each launch of a plan needs, and its grids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsa_group.errors import LayoutError
from qsa_group.kernel import (
    Grid,
    GroupVariant,
    KernelVariant,
    Tiling,
    TilingRule,
    choose_tiling,
    joined_tiling,
    tilings_of_binaries,
)

from .backend import Backend, PlanInputs

if TYPE_CHECKING:
    import qsa_group._core as _core
    from qsa_group.buffers import RequestTable

__all__ = ["KernelBackend", "LaunchVariants"]

_MOST_LANES = 1 << 20
"""Most elements of a Triton tensor."""


@dataclass(frozen=True)
class LaunchVariants:
    """The kernel variants of a plan.

    Attributes:
        variants: one a launch.
        grids: one a group.
    """

    variants: Sequence[KernelVariant]
    grids: Sequence[Grid]


class KernelBackend(Backend):
    """A backend that runs the Triton kernel.

    Args:
        tiling: chooses each group's tiling; None for `choose_tiling`, and `joined_tiling` where groups share a launch.
            All groups of a launch must get the same `num_warps`.
    """

    def __init__(self, *, tiling: TilingRule | None = None) -> None:
        self._tiling = tiling

    def warmup(self, table: RequestTable, mode: str, num_steps: int, buffers: tuple[str, ...]) -> None:
        """See `Backend.warmup`."""
        if self._tiling is None:
            tilings = tilings_of_binaries(mode, num_steps)
        else:
            tilings = {self._tiling(mode, num_steps, 1, 1)}
        for tiling in tilings:
            group = GroupVariant(
                mode, num_steps, buffers, table.compress_ratio, table.page_size, table.ring_size, tiling
            )
            self.load(KernelVariant((group,)), table)

    @abstractmethod
    def load(self, variant: KernelVariant, table: RequestTable) -> None:
        """Compiles and loads a variant's kernel for the table's device."""

    def variants(self, inputs: PlanInputs) -> LaunchVariants:
        """The kernel variants and grids of a plan.

        Raises:
            LayoutError: the kernel cannot serve these buffers.
        """
        groups = inputs.blueprint.groups
        variants: list[KernelVariant] = []
        grids: dict[int, Grid] = {}
        for launch in inputs.blueprint.launches:
            rule = self._tiling or (joined_tiling if len(launch) > 1 else choose_tiling)
            members = []
            for index in launch:
                tiling = _tiling(rule, groups[index])
                variant = _group_variant(inputs.table, groups[index], tiling)
                grids[index] = variant.grid(groups[index].rows, tiling.lanes)
                members.append(variant)
            variants.append(KernelVariant(tuple(members)))
        return LaunchVariants(variants, [grids[index] for index in range(len(groups))])


def _tiling(rule: TilingRule, group: _core.Group) -> Tiling:
    return rule(group.mode, len(group.steps), group.rows, group.num_pages)


def _group_variant(table: RequestTable, group: _core.Group, tiling: Tiling) -> GroupVariant:
    variant = GroupVariant(
        group.mode, len(group.steps), group.buffers, table.compress_ratio, table.page_size, table.ring_size, tiling
    )
    if variant.ring_lanes > _MOST_LANES:
        raise LayoutError(
            f"compress_ratio has value {table.compress_ratio}, must be at most {_MOST_LANES} where the kernel "
            "refreshes ring_group_locs; leave that buffer out, or use backend 'host'",
            field="compress_ratio",
        )
    return variant
