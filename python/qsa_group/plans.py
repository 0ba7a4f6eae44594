"""A plan: what is checked and packed once, and run many times."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from . import _core
from .errors import LaunchError
from .launchers import capturing, start_by_triton
from .variants import FIELDS, KernelVariant

if TYPE_CHECKING:
    from typing_extensions import Self

    from .layouts import RequestTable, StepBuffers

__all__ = ["Explanation", "ReplayPlan", "ReplayStatus"]


class ReplayStatus(enum.IntFlag):
    """Why rows of a refresh were made inert or dropped; 0 where every row was served."""

    OK = 0
    SLOT_OUT_OF_TABLE = 1
    """A request slot outside the table."""
    LENGTH_NOT_POSITIVE = 2
    """A row length of 0 or less."""
    LENGTH_EXCEEDS_TABLE = 4
    """A row length past the table's width."""
    ROWS_EXCEED_BUCKET = 8
    """More packed rows than the bucket holds; those past it were dropped."""
    EXTEND_LENGTH_NEGATIVE = 16
    """A negative extend length, taken as 0."""


class Explanation(str):
    """How a plan runs, in words; `data` says the same for programs.

    Attributes:
        data: backend, device, mode, padding, rows, groups, splits, launches, step_by_step_launches, fallbacks,
            runs, overlap_runs and hooked_runs; of a joined plan backend, device, groups (plan and group of each
            launch's groups), splits, launches, launches_apart, fallbacks, runs, overlap_runs, hooked_runs and plans
            (the data of each). Only JSON types.
    """

    data: dict[str, Any]

    def __new__(cls, words: str, data: dict[str, Any]) -> Explanation:
        """Joins words and data."""
        made = super().__new__(cls, words)
        made.data = data
        return made

    def __getnewargs__(self) -> tuple[str, dict[str, Any]]:  # type: ignore[override]
        """What copies and pickles are made from."""
        return str(self), self.data


@dataclass
class Blueprint:
    """What a plan is made from."""

    request: _core.Request
    table: RequestTable
    steps: tuple[StepBuffers, ...]
    mode: str
    draft_token_num: int | None
    padding: str
    backend: str
    status_word: torch.Tensor
    variants: list[KernelVariant]
    cuts: list[tuple[int, int, int]]
    compiled: list[Any] = field(default_factory=list)
    kernels: list[_core.Kernel] | None = None
    hooks: list[list[Any]] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    owner: object = None


class ReplayPlan(_core.Plan):
    """The refresh of one graph's buffers, made by `ReplayPlanner.plan`. It keeps the memory of all it writes and reads.

    `run` may be called from several threads. Keep the plan, and the inputs it was recorded with, for as long as a CUDA
    graph that recorded it is replayed. Give a planned tensor no other memory (`resize_`, `set_`, `.data =`): the plan
    stays with the memory that it was made over.
    """

    _memory: list[torch.Tensor]

    def __new__(cls, blueprint: Blueprint, cache: _core.Cache) -> Self:
        """Made by `ReplayPlanner.plan` alone."""
        memory = _aliases(blueprint)
        # Torch can move memory on the host alone, and it matters where a refresh goes by the address.
        watched = memory if blueprint.table.device.type == "cpu" and not blueprint.kernels else []
        plan = super().__new__(
            cls,
            blueprint.request,
            cache,
            blueprint.status_word.data_ptr(),
            blueprint.cuts,
            blueprint.kernels,
            blueprint.hooks,
            watched,
        )
        plan._memory = memory
        return plan

    def __init__(self, blueprint: Blueprint, cache: _core.Cache) -> None:
        # The cache holds the plan, so the plan must not hold the cache.
        del cache
        self._blueprint = blueprint

    @property
    def backend(self) -> str:
        """How it runs: "direct", "triton" or "host"."""
        return self._blueprint.backend

    @property
    def mode(self) -> str:
        """One of "decode", "target_verify" and "draft_extend"."""
        return self._blueprint.mode

    @property
    def padding(self) -> str:
        """Either "count" or "slot"."""
        return self._blueprint.padding

    @property
    def steps(self) -> tuple[StepBuffers, ...]:
        """The planned `StepBuffers`."""
        return self._blueprint.steps

    @property
    def table(self) -> RequestTable:
        """The `RequestTable` that it reads."""
        return self._blueprint.table

    @property
    def status_word(self) -> torch.Tensor:
        """[1] int32 on the plan's device, or-ed by every run; see `status`."""
        return self._blueprint.status_word

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Step indices of each launch, in launch order."""
        return self._request.groups

    @property
    def device(self) -> torch.device:
        """Device of every tensor of the plan."""
        return self.table.device

    @property
    def num_rows(self) -> int:
        """Rows of the smallest step's bucket."""
        return min(self._request.group_rows)

    def status(self) -> ReplayStatus:
        """What went wrong in rows since the plan was made or the status reset. Waits for the device; not for hot paths.

        An engine that wants it there copies `status_word` along with what it copies anyway.
        """
        return ReplayStatus(int(self.status_word.item()))

    def reset_status(self) -> None:
        """Clears the status, in the order of the current stream."""
        self.status_word.zero_()

    def explain(self) -> Explanation:
        """How this plan runs and why: groups, what kept steps apart, fallbacks that were taken."""
        request = self._request
        groups = [list(group) for group in request.groups]
        data = {
            "backend": self.backend,
            "device": str(self.device),
            "mode": self.mode,
            "padding": self.padding,
            "rows": request.group_rows,
            "groups": groups,
            "splits": request.splits,
            "launches": len(groups),
            "step_by_step_launches": len(self.steps),
            "fallbacks": list(self._fallbacks()),
            "runs": self._runs,
            "overlap_runs": self._overlap_runs,
            "hooked_runs": self._hooked_runs,
        }
        return Explanation("\n".join(_words(data)), data)

    def _fallbacks(self) -> list[str]:
        found = list(self._blueprint.fallbacks)
        if self._overlap_runs:
            found.append(
                f"in {self._overlap_runs} of {self._runs} runs a live input shared memory with an output: the steps "
                "ran one by one in their order, each on a snapshot of the inputs"
            )
        if self._hooked_runs:
            found.append(
                f"in {self._hooked_runs} of {self._runs} runs Triton launch hooks were set (a profiler): the kernel "
                "was started by Triton's own launcher"
            )
        return found

    def _run_apart(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        """One launch a step, in order, each on a snapshot: an input shares memory with an output."""
        for step in range(len(self.steps)):
            extend = None if extend_lens is None else extend_lens.clone()
            self._run_step(step, seq_lens.clone(), req_pool_indices.clone(), num_padding, extend)

    def _run_groups(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        """Every group through Triton's own launcher, for calls that the core does not run itself."""
        for group in range(len(self.groups)):
            launch_by_triton(self, group, seq_lens, req_pool_indices, num_padding, extend_lens)

    def _run_hooked(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        """As `_run_groups`, counted: Triton's launcher calls the hooks that are set."""
        self._run_groups(seq_lens, req_pool_indices, num_padding, extend_lens)
        self._count()

    def __repr__(self) -> str:
        return (
            f"ReplayPlan({self.mode}, steps={len(self.steps)}, launches={len(self.groups)}, rows={self.num_rows}, "
            f"backend={self.backend!r}, device={self.device})"
        )


class PythonPlan(ReplayPlan):
    """A plan whose launches Python makes; subclasses say how one step alone is run, and all groups if not by Triton."""

    def run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        """Refreshes every planned buffer from the live batch; see `_core.Plan.run`."""
        overlaps = self._admit(seq_lens, req_pool_indices, num_padding, extend_lens)
        if overlaps is None:
            return
        if overlaps:
            self._run_apart(seq_lens, req_pool_indices, num_padding, extend_lens)
            return
        self._run_groups(seq_lens, req_pool_indices, num_padding, extend_lens)
        self._count()


class TritonPlan(PythonPlan):
    """Started by Triton's own launcher, or by its interpreter."""

    def _run_step(
        self,
        step: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        group = next(index for index, members in enumerate(self.groups) if step in members)
        launch_by_triton(self, group, seq_lens, req_pool_indices, num_padding, extend_lens, alone=step)
        self._count_step(step)


class StagedPlan(PythonPlan):
    """Run on the host for tensors that are not: copies in, refreshes, copies out. Slow, synchronous, and right."""

    def __init__(self, blueprint: Blueprint, cache: _core.Cache) -> None:
        super().__init__(blueprint, cache)
        from .layouts import RequestTable, StepBuffers
        from .planner import ReplayPlanner

        table = blueprint.table
        self._lock = threading.Lock()
        self._host_table = torch.zeros((table.slots, table.width), dtype=torch.int32)
        self._mirrors = [
            {name: torch.zeros(buffer.shape, dtype=buffer.dtype) for name, buffer in present(step)}
            for step in blueprint.steps
        ]
        host_table = RequestTable(self._host_table, compress_ratio=table.compress_ratio, page_size=table.page_size)
        planner = ReplayPlanner(host_table, backend="host", cache_capacity=0)
        self._inner = [
            planner.plan(
                [StepBuffers(offset=step.offset, **mirror)],
                mode=blueprint.mode,
                draft_token_num=blueprint.draft_token_num,
                padding=blueprint.padding,
            )
            for step, mirror in zip(blueprint.steps, self._mirrors, strict=True)
        ]

    def _run_groups(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        with self._lock:
            self._fetch_table()
            for group in self.groups:
                for step in group:
                    self._stage(step, seq_lens, req_pool_indices, num_padding, extend_lens)

    def _run_step(
        self,
        step: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        with self._lock:
            self._fetch_table()
            self._stage(step, seq_lens, req_pool_indices, num_padding, extend_lens)
        self._count_step(step)

    def _fetch_table(self) -> None:
        if capturing(self.device):
            raise LaunchError(
                "a plan that is staged through the host cannot be recorded in a CUDA graph; run it before the replay"
            )
        self._host_table.copy_(self.table._core.memory)

    def _stage(
        self,
        step: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int,
        extend_lens: torch.Tensor | None,
    ) -> None:
        inner, mirrors = self._inner[step], self._mirrors[step]
        if "page_table" in mirrors:
            mirrors["page_table"].fill_(-1)
        extend = None if extend_lens is None else extend_lens.cpu()
        inner.run(seq_lens.cpu(), req_pool_indices.cpu(), num_padding, extend)
        for name, buffer in present(self.steps[step]):
            fresh = mirrors[name].to(buffer.device)
            # What the refresh left out of a page table stays as it is.
            buffer.copy_(fresh if name != "page_table" else torch.where(fresh < 0, buffer, fresh))
        status = int(inner.status())
        inner.reset_status()
        if status:
            self.status_word.bitwise_or_(status)


def _aliases(blueprint: Blueprint) -> list[torch.Tensor]:
    """Aliases of all that a plan has the address of: it stays, even if a caller's tensor is given other data."""
    buffers = [buffer.detach() for step in blueprint.steps for _, buffer in present(step)]
    return [blueprint.table._core.memory, blueprint.status_word.detach(), *buffers]


def present(step: StepBuffers) -> list[tuple[str, torch.Tensor]]:
    """The buffers that a step has, by name."""
    found = ((name, getattr(step, name)) for name in FIELDS)
    return [(name, buffer) for name, buffer in found if buffer is not None]


def launch_by_triton(
    plan: ReplayPlan,
    group: int,
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    num_padding: int,
    extend_lens: torch.Tensor | None,
    alone: int | None = None,
) -> None:
    """Starts one group's kernel, or one step of it alone, through Triton's launcher or interpreter."""
    blueprint = plan._blueprint
    variant = blueprint.variants[group]
    words = plan._arguments(group, seq_lens, req_pool_indices, num_padding, extend_lens, alone=alone)
    compiled = blueprint.compiled[group] if blueprint.compiled else None
    start_by_triton(variant, compiled, blueprint.cuts[group][0], words, plan.device)


def _words(data: dict[str, Any]) -> list[str]:
    steps, launches = data["step_by_step_launches"], data["launches"]
    head = f"{data['mode']} on {data['device']}, backend {data['backend']}, padding by {data['padding']}"
    lines = [f"{head}: {steps} step{'s' * (steps != 1)} in {launches} launch{'es' * (launches != 1)}"]
    for index, group in enumerate(data["groups"]):
        members = ", ".join(str(step) for step in group)
        lines.append(f"  launch {index}: step{'s' * (len(group) != 1)} {members} ({data['rows'][index]} rows)")
    lines.extend(
        f"  step {split['step']} cannot share the launch of step {split['group_of']}: {split['field']} is "
        f"{split['value']} against {split['other']}"
        for split in data["splits"]
    )
    lines.extend(f"  fallback: {reason}" for reason in data["fallbacks"])
    return lines
