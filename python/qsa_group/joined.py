"""Several plans in one call, and in one launch where that can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import _core, launchers
from .errors import LayoutError
from .plans import Explanation, ReplayPlan, ReplayStatus
from .shapes import joined_shape
from .variants import JoinedVariant, Variant

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from .planner import ReplayPlanner

__all__ = ["JoinedPlan"]


@dataclass
class Launch:
    """One launch of a joined plan: its groups as (plan, group), how each is cut up, and what starts it."""

    groups: list[tuple[int, int]]
    cuts: list[tuple[int, int, int]]
    variant: Variant
    compiled: Any = None
    kernel: _core.Kernel | None = None

    @property
    def programs(self) -> int:
        """Programs of the launch."""
        return sum(programs for programs, _, _ in self.cuts)


@dataclass
class JoinedBlueprint:
    """What a joined plan is made from."""

    plans: tuple[ReplayPlan, ...]
    backend: str
    launches: list[Launch] = field(default_factory=list)
    splits: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[list[Any]] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)


class JoinedPlan(_core.Join):
    """Several plans that one live batch refreshes, made by `ReplayPlanner.join`. It keeps the plans.

    A run does what running the plans in their order does. Each plan can still be run by itself, and counts those runs
    alone.
    """

    def __new__(cls, blueprint: JoinedBlueprint, cache: _core.Cache) -> Self:
        """Made by `ReplayPlanner.join` alone."""
        launches = [
            ([(*place, cut) for place, cut in zip(launch.groups, launch.cuts, strict=True)], launch.kernel)
            for launch in blueprint.launches
        ]
        return super().__new__(cls, list(blueprint.plans), cache, launches, blueprint.hooks)

    def __init__(self, blueprint: JoinedBlueprint, cache: _core.Cache) -> None:
        del cache
        self._blueprint = blueprint

    @property
    def plans(self) -> tuple[ReplayPlan, ...]:
        """The joined plans, in order."""
        return self._blueprint.plans

    @property
    def backend(self) -> str:
        """How it runs: "direct", "triton" or "host"."""
        return self._blueprint.backend

    @property
    def launches(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Each launch's groups, as (index of the plan, index of its group), in launch order."""
        if self._blueprint.launches:
            return tuple(tuple(launch.groups) for launch in self._blueprint.launches)
        return tuple(((index, group),) for index, plan in enumerate(self.plans) for group in range(len(plan.groups)))

    @property
    def device(self) -> torch.device:
        """Device of every tensor of the plans."""
        return self.plans[0].device

    def status(self) -> ReplayStatus:
        """What went wrong in rows of any of the plans; as `ReplayPlan.status`."""
        found = ReplayStatus.OK
        for plan in self.plans:
            found |= plan.status()
        return found

    def reset_status(self) -> None:
        """Clears the status of every plan, in the order of the current stream."""
        for plan in self.plans:
            plan.reset_status()

    def explain(self) -> Explanation:
        """How the plans run: launches, and fallbacks that were taken; `data["plans"]` explains each plan by itself."""
        launches, splits = self.launches, self._blueprint.splits
        data: dict[str, Any] = {
            "backend": self.backend,
            "device": str(self.device),
            "groups": [[list(place) for place in launch] for launch in launches],
            "splits": splits,
            "launches": len(launches),
            "launches_apart": sum(len(plan.groups) for plan in self.plans),
            "fallbacks": self._fallbacks(),
            "runs": self._runs,
            "overlap_runs": self._overlap_runs,
            "hooked_runs": self._hooked_runs,
            "plans": [plan.explain().data for plan in self.plans],
        }
        launched = f"{len(launches)} launch{'es' * (len(launches) != 1)}"
        apart = data["launches_apart"]
        launched += f" instead of {apart}" if apart != len(launches) else ", as many as apart"
        lines = [f"{len(self.plans)} plans on {self.device}, backend {self.backend}: {launched}"]
        for index, launch in enumerate(launches):
            members = ", ".join(f"{self.plans[plan].mode} (plan {plan}, group {group})" for plan, group in launch)
            lines.append(f"  launch {index}: {members}")
        lines.extend(
            f"  plan {split['plan']}, group {split['group']} cannot share the launch before: {split['field']} is "
            f"{split['value']} against {split['other']}"
            for split in splits
        )
        lines.extend(f"  fallback: {reason}" for reason in data["fallbacks"])
        return Explanation("\n".join(lines), data)

    def _fallbacks(self) -> list[str]:
        found = list(self._blueprint.fallbacks)
        apart = "the plans ran one after the other, each as it explains"
        if self._overlap_runs:
            found.append(
                f"in {self._overlap_runs} of {self._runs} runs a live input shared memory with an output: {apart}"
            )
        if self._hooked_runs:
            found.append(
                f"in {self._hooked_runs} of {self._runs} runs Triton launch hooks were set (a profiler): {apart}"
            )
        return found

    def _run_apart(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        """Plan by plan, each in its own way."""
        for plan in self.plans:
            extend = extend_lens if plan.mode == "draft_extend" else None
            plan.run(seq_lens, req_pool_indices, num_padding, extend)

    def __repr__(self) -> str:
        modes = " + ".join(plan.mode for plan in self.plans)
        return f"JoinedPlan({modes}, launches={len(self.launches)}, backend={self.backend!r}, device={self.device})"


class PythonJoinedPlan(JoinedPlan):
    """A joined plan whose launches Triton's launcher or interpreter starts, or whose plans the host runs."""

    def run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        """Refreshes what every plan holds; see `_core.Join.run`."""
        apart = self._admit(seq_lens, req_pool_indices, num_padding, extend_lens)
        if apart is None:
            return
        if apart:
            self._run_apart(seq_lens, req_pool_indices, num_padding, extend_lens)
            return
        for index, launch in enumerate(self._blueprint.launches):
            words = self._arguments(index, seq_lens, req_pool_indices, num_padding, extend_lens)
            launchers.start_by_triton(launch.variant, launch.compiled, launch.programs, words, self.device)
        self._count()


def join(planner: ReplayPlanner, plans: Sequence[ReplayPlan]) -> JoinedPlan:
    """See `ReplayPlanner.join`."""
    members = _members(planner, plans)
    made = [plan._blueprint for plan in members]
    blueprint = JoinedBlueprint(plans=members, backend=planner.backend)
    # Each reason once, in the order of the plans.
    blueprint.fallbacks = list(dict.fromkeys(reason for one in made for reason in one.fallbacks))
    if planner.backend == "host":
        blueprint.fallbacks.append("the host runs the plans one after the other")
        return PythonJoinedPlan(blueprint, planner._cache)
    launches, blueprint.splits = _core.join_groups(list(members))
    blueprint.launches = [_launch(members, groups) for groups in launches]
    if launchers.interpreting() and planner._driver == "cuda":
        return PythonJoinedPlan(blueprint, planner._cache)
    direct = planner.backend == "direct" and all(plan.backend == "direct" for plan in members)
    variants = [launch.variant for launch in blueprint.launches]
    compiled, kernels = launchers.load_kernels(variants, planner.table.device, planner._driver, direct=direct)
    for launch, made_of in zip(blueprint.launches, compiled, strict=True):
        launch.compiled = made_of
    if direct and not isinstance(kernels, str):
        for launch, kernel in zip(blueprint.launches, kernels, strict=True):
            launch.kernel = kernel
        blueprint.hooks = made[0].hooks
        return JoinedPlan(blueprint, planner._cache)
    if direct:
        blueprint.fallbacks.append(f"not started directly but by Triton's launcher: {kernels}")
    blueprint.backend = "triton"
    return PythonJoinedPlan(blueprint, planner._cache)


def _members(planner: ReplayPlanner, plans: Sequence[ReplayPlan]) -> tuple[ReplayPlan, ...]:
    if not isinstance(plans, Sequence):
        raise LayoutError(
            f"plans has type {type(plans).__name__}, must be a sequence of ReplayPlan; pass the plans in order",
            field="plans",
        )
    members = tuple(plans)
    for index, plan in enumerate(members):
        if not isinstance(plan, ReplayPlan):
            raise LayoutError(
                f"plans[{index}] has type {type(plan).__name__}, must be ReplayPlan; pass what planner.plan returned",
                field="plans",
            )
        if plan._blueprint.owner is not planner._owner:
            raise LayoutError(
                f"plans[{index}] was planned over {plan.table!r} by another planner than this one over "
                f"{planner.table!r}; join plans of one planner",
                field="plans",
            )
    if len(members) < 2:
        raise LayoutError(
            f"plans has length {len(members)}, must be at least 2; run a single plan as it is", field="plans"
        )
    return members


def _launch(plans: tuple[ReplayPlan, ...], groups: list[tuple[int, int]]) -> Launch:
    """A launch of one group is the plan's own; the groups of others are cut up anew, for programs of the same warps."""
    if len(groups) == 1:
        (plan, group), *_ = groups
        own = plans[plan]._blueprint
        return Launch(groups, [own.cuts[group]], own.variants[group])
    cuts, variants = [], []
    for plan, group in groups:
        made = plans[plan]._blueprint
        rows, pages = made.request.group_rows[group], made.request.group_pages[group]
        shape = joined_shape(made.mode, made.variants[group].num_steps, rows, pages)
        variant = replace(made.variants[group], block=shape.block, wide=shape.wide, num_warps=shape.num_warps)
        variants.append(variant)
        cuts.append(variant.cut(rows, shape.lanes))
    return Launch(groups, cuts, JoinedVariant(tuple(variants)))
