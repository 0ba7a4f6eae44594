"""A plan: checked and packed once, run many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from . import _core
from .status import ReplayStatus

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from .buffers import RequestTable, StepBuffers
    from .launch import Prepared

__all__ = ["Explanation", "ExplanationData", "ReplayPlan", "SplitData"]


class SplitData(TypedDict):
    """Why a step was kept out of a group, or a group out of a launch.

    Attributes:
        step: index of the step that was kept out; of a group the first step.
        group_of: index of the first step of the group or launch that it was kept out of.
        field: what differs, or "overlap", "order", "group size", "launch size".
        value: the step's value.
        other: the other's value.
    """

    step: int
    group_of: int
    field: str
    value: str
    other: str


class ExplanationData(TypedDict):
    """How a plan runs. Only JSON types.

    Attributes:
        backend: "direct", "triton" or "host".
        device: device of every tensor of the plan.
        mode: mode of the plan; the modes of a joined plan, with " + " between them.
        padding: padding rule of the plan; the rules of a joined plan, with " + " between them.
        groups: step indices of each group, in launch order.
        rows: rows of each group's bucket.
        launches: number of launches.
        launch_groups: indices of the groups of each launch.
        step_by_step_launches: number of launches that a launch a step would take.
        splits: what kept steps and groups apart.
        fallbacks: why the plan does not run as it was asked to, one sentence each.
        runs: calls of `run` with at least one request.
        overlap_runs: runs in which a live input shared memory with an output.
        hooked_runs: runs in which Triton's launch hooks were set.
    """

    backend: str
    device: str
    mode: str
    padding: str
    groups: list[list[int]]
    rows: list[int]
    launches: int
    launch_groups: list[list[int]]
    step_by_step_launches: int
    splits: list[SplitData]
    fallbacks: list[str]
    runs: int
    overlap_runs: int
    hooked_runs: int


class Explanation(str):
    """How a plan runs, in words. `data` says the same for programs.

    Attributes:
        data: see `ExplanationData`.
    """

    data: ExplanationData

    def __new__(cls, text: str, data: ExplanationData) -> Self:
        """Joins text and data."""
        explanation = super().__new__(cls, text)
        explanation.data = data
        return explanation

    def __getnewargs__(self) -> tuple[str, ExplanationData]:  # type: ignore[override]
        """What copies and pickles are made from."""
        return str(self), self.data


class ReplayPlan(_core.Plan):
    """The refresh of the buffers of one graph or several, made by `ReplayPlanner.plan` or `ReplayPlanner.join`.

    A plan keeps the memory of all that it reads and writes. `run` may be called from several threads. Keep the plan,
    and the inputs that it was recorded with, as long as a CUDA graph that recorded the plan is replayed. Give a planned
    tensor no other memory (`resize_`, `set_`, `.data =`): the plan stays with the memory that it was made over.
    """

    def __new__(
        cls,
        blueprint: _core.Blueprint,
        table: RequestTable,
        steps: Sequence[StepBuffers],
        status_word: torch.Tensor,
        prepared: Prepared,
        counters: _core.Counters,
    ) -> Self:
        """Made by a planner alone."""
        return super().__new__(
            cls, blueprint, table, tuple(steps), status_word, prepared.launcher, prepared.grids, counters
        )

    def __init__(
        self,
        blueprint: _core.Blueprint,
        table: RequestTable,
        steps: Sequence[StepBuffers],
        status_word: torch.Tensor,
        prepared: Prepared,
        counters: _core.Counters,
    ) -> None:
        del counters  # They are the planner's.
        self._table = table
        self._steps = tuple(steps)
        self._status_word = status_word
        self._backend = prepared.backend
        self._fallbacks = prepared.fallbacks
        groups = blueprint.groups
        self._mode = " + ".join(dict.fromkeys(group.mode for group in groups))
        self._padding = " + ".join(dict.fromkeys(group.padding for group in groups))

    @property
    def backend(self) -> str:
        """How the plan runs: "direct", "triton" or "host"."""
        return self._backend

    @property
    def mode(self) -> str:
        """One of "decode", "target_verify" and "draft_extend"; several of a joined plan, with " + " between them."""
        return self._mode

    @property
    def padding(self) -> str:
        """Either "count" or "slot"; "count + slot" or "slot + count" of a joined plan with both."""
        return self._padding

    @property
    def steps(self) -> tuple[StepBuffers, ...]:
        """The planned `StepBuffers`. A joined plan has the steps of all its plans, in order."""
        return self._steps

    @property
    def table(self) -> RequestTable:
        """The `RequestTable` that the plan reads."""
        return self._table

    @property
    def device(self) -> torch.device:
        """Device of every tensor of the plan."""
        return self._table.device

    @property
    def status_word(self) -> torch.Tensor:
        """[1] int32 on the plan's device. Every run adds its `ReplayStatus` bits; see `status`."""
        return self._status_word

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Step indices of each group, in launch order."""
        return tuple(group.steps for group in self.blueprint.groups)

    @property
    def launches(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the groups of each launch, in launch order. Only a joined plan has several groups in a launch."""
        return self.blueprint.launches

    @property
    def num_rows(self) -> int:
        """Rows of the smallest bucket of the plan."""
        return min(group.rows for group in self.blueprint.groups)

    def status(self) -> ReplayStatus:
        """What went wrong in rows since the plan was made or the status was reset.

        Waits for the device, so this is not for hot paths. An engine that wants the status there copies `status_word`
        along with what the engine copies anyway.
        """
        return ReplayStatus(int(self.status_word.item()))

    def reset_status(self) -> None:
        """Clears the status, in the order of the current stream."""
        self.status_word.zero_()

    def explain(self) -> Explanation:
        """How this plan runs and why: launches, what kept steps apart, fallbacks that were taken."""
        groups = self.blueprint.groups
        data = ExplanationData(
            backend=self.backend,
            device=str(self.device),
            mode=self.mode,
            padding=self.padding,
            groups=[list(group.steps) for group in groups],
            rows=[group.rows for group in groups],
            launches=len(self.launches),
            launch_groups=[list(launch) for launch in self.launches],
            step_by_step_launches=len(self.steps),
            splits=[
                SplitData(
                    step=split.step, group_of=split.group_of, field=split.field, value=split.value, other=split.other
                )
                for split in self.blueprint.splits
            ],
            fallbacks=[*self._fallbacks, *self._run_fallbacks()],
            runs=self.runs,
            overlap_runs=self.overlap_runs,
            hooked_runs=self.hooked_runs,
        )
        return Explanation("\n".join(_lines(data)), data)

    def _run_fallbacks(self) -> list[str]:
        fallbacks = []
        if self.overlap_runs:
            fallbacks.append(
                f"in {self.overlap_runs} of {self.runs} runs a live input shared memory with an output: the steps ran "
                "one by one in their order, each on a snapshot of the inputs"
            )
        if self.hooked_runs:
            fallbacks.append(
                f"in {self.hooked_runs} of {self.runs} runs Triton launch hooks were set (a profiler): the kernel was "
                "started by Triton's own launcher"
            )
        return fallbacks

    def __repr__(self) -> str:
        return (
            f"ReplayPlan({self.mode}, steps={len(self.steps)}, launches={len(self.launches)}, rows={self.num_rows}, "
            f"backend={self.backend!r}, device={self.device})"
        )


def _lines(data: ExplanationData) -> list[str]:
    steps, launches = data["step_by_step_launches"], data["launches"]
    head = f"{data['mode']} on {data['device']}, backend {data['backend']}, padding by {data['padding']}"
    lines = [f"{head}: {steps} step{'s' * (steps != 1)} in {launches} launch{'es' * (launches != 1)}"]
    for index, groups in enumerate(data["launch_groups"]):
        members = "; ".join(_members(data, group) for group in groups)
        lines.append(f"  launch {index}: {members}")
    lines.extend(
        f"  step {split['step']} cannot share the launch of step {split['group_of']}: {split['field']} is "
        f"{split['value']} against {split['other']}"
        for split in data["splits"]
    )
    lines.extend(f"  fallback: {fallback}" for fallback in data["fallbacks"])
    return lines


def _members(data: ExplanationData, group: int) -> str:
    steps = data["groups"][group]
    return f"step{'s' * (len(steps) != 1)} {', '.join(map(str, steps))} ({data['rows'][group]} rows)"
