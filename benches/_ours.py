"""This package's ways to refresh, and other launchers of its compiled kernel, for the launch bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """Seconds that n driver calls take in a Rust loop, with arguments packed once."""
    seq_lens, req_pool_indices, *_ = inputs
    extend_lens = inputs[3] if len(inputs) > 3 else None
    return lambda count: plan._bare_launch_seconds(seq_lens, req_pool_indices, count, extend_lens)


@dataclass(frozen=True)
class Kernel:
    """The compiled kernel of a plan's first group and everything that one launch of it takes."""

    compiled: Any
    grid: tuple[int, int, int]
    arguments: list[Any]  # as Triton's launchers take them: nested, with compile-time values
    words: list[int | None]  # as the binary takes them: flat, scratch pointers included
    types: str  # of the words, as torch's launcher names them


def kernel_of(plan: ReplayPlan, inputs: LiveSet) -> Kernel:
    """The kernel that a plan starts for these inputs."""
    made = plan._blueprint
    compiled, variant = made.compiled[0], made.variants[0]
    words = plan._arguments(0, *inputs)
    kinds = [kind for kind in flat(tuple(compiled.src.signature.values())) if kind != "constexpr"]
    if len(kinds) != len(words):
        raise RuntimeError(f"{len(words)} arguments for a signature of {len(kinds)}")
    scratch = sum(hasattr(compiled.metadata, name) for name in ("global_scratch_size", "profile_scratch_size"))
    types = "".join("O" if kind.startswith("*") else "l" for kind in kinds) + "O" * scratch
    grid = (made.cuts[0][0], 1, 1)
    return Kernel(compiled, grid, variant.arguments(tuple(words)), [*words, *[None] * scratch], types)


def flat(values: Any) -> list[Any]:
    """Nested tuples depth first, as Triton passes them to a kernel."""
    return [leaf for value in values for leaf in flat(value)] if isinstance(values, tuple) else [values]
