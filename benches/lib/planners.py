"""This package's planners over one request table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from qsa_group import ReplayPlan, ReplayPlanner, RequestTable, StepBuffers

from .results import attempt
from .workload import PAGE_SIZE, RATIO, Tensors

if TYPE_CHECKING:
    from qsa_group.launch import Backend

__all__ = ["Planners"]


class Planners:
    """One planner a backend, over one request table.

    Args:
        table: the request table.
        names: names of backends.
        backends: backends by the name that the bench gives them.

    Attributes:
        table: the request table.
        planners: the planners by the name of their backend.
        errors: why a backend has no planner.
    """

    def __init__(self, table: torch.Tensor, *names: str, **backends: Backend) -> None:
        self.table = RequestTable(table, compress_ratio=RATIO, page_size=PAGE_SIZE)
        self.planners: dict[str, ReplayPlanner] = {}
        self.errors: dict[str, str] = {}
        chosen: dict[str, str | Backend] = {name: name for name in names}
        for name, backend in (chosen | backends).items():
            planner = attempt(self.errors, name, partial(ReplayPlanner, self.table, backend=backend))
            if planner is not None:
                self.planners[name] = planner

    def plan(self, backend: str, steps: Sequence[Tensors], mode: str = "decode", **options: Any) -> ReplayPlan:
        """A plan for steps with the usual offsets: 1 for the first, 2 for the second and so on."""
        if backend in self.errors:
            raise RuntimeError(self.errors[backend])
        layouts = [StepBuffers(offset=i + 1, **buffers) for i, buffers in enumerate(steps)]
        return self.planners[backend].plan(layouts, mode=mode, **options)

    def launches(self) -> int:
        """Launches counted so far by all planners."""
        return sum(int(planner.stats()["launches"]) for planner in self.planners.values())

    def clear(self) -> None:
        """Drops every plan."""
        for planner in self.planners.values():
            planner.clear()
