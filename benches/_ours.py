"""This package's ways to refresh, and other launchers of its compiled kernel, for the launch bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from _common import PAGE_SIZE, RATIO, LiveSet, Tensors, attempt
from qsa_group import ReplayPlan, ReplayPlanner, RequestTable, StepBuffers


class Planners:
    """One planner a backend over one request table."""

    def __init__(self, table: torch.Tensor, backends: Sequence[str], **private: Any) -> None:
        self.table = RequestTable(table, compress_ratio=RATIO, page_size=PAGE_SIZE)
        self.planners: dict[str, ReplayPlanner] = {}
        self.errors: dict[str, str] = {}
        for backend in backends:
            make = partial(ReplayPlanner, self.table, backend=backend, **private)
            planner = attempt(self.errors, backend, make)
            if planner is not None:
                self.planners[backend] = planner

    def plan(self, backend: str, steps: Sequence[Tensors], mode: str = "decode", **options: Any) -> ReplayPlan:
        """A plan for steps with the usual offsets."""
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


def bare(plan: ReplayPlan, inputs: LiveSet) -> Callable[[int], float]:
    """Seconds that n driver calls take from Rust, with arguments packed once."""
    hook = plan._bare_launch_seconds
    return lambda count: hook(*inputs[:2], count)
