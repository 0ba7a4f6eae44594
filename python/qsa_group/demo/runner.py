"""Refreshes every round through plans, on buffers as an engine's graphs would read them, and checks every entry."""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from qsa_group import FIELDS, SHARED_INDEX_FIELDS, ReplayPlan, ReplayPlanner, RequestTable, StepBuffers

from . import reference
from .arena import Arena
from .rounds import Round, RoundSettings

__all__ = ["Call", "RoundRunner"]

Mode: TypeAlias = Literal["decode", "target_verify", "draft_extend"]
_MOST_REPORTED = 5


class Call(NamedTuple):
    """One call of ``run``.

    Attributes:
        label: what the call refreshes.
        plan: the plan.
        inputs: the arguments of ``run``.
    """

    label: str
    plan: ReplayPlan
    inputs: tuple[Any, ...]


@dataclass
class _Pass:
    """One of the three refreshes of a round, with buffers for the largest bucket."""

    mode: Mode
    arena: Arena  # What the refreshes write.
    expected: Arena  # What they must leave.
    rows_per_request: int
    steps: dict[int, list[StepBuffers]] = field(default_factory=dict)
    layouts: dict[int, reference.Layout] = field(default_factory=dict)
    host_ns: list[int] = field(default_factory=list)
    launches: int = 0
    step_by_step: int = 0

    def buffers(self, bucket: int) -> list[StepBuffers]:
        """The buffers of a bucket, sliced as a graph capture slices them; made once."""
        if bucket not in self.steps:
            rows = bucket * self.rows_per_request
            self.steps[bucket] = [
                StepBuffers(step + 1, **{name: buffer[:rows] for name, buffer in self.arena.step(step).items()})
                for step in range(self.arena.steps)
            ]
        return self.steps[bucket]


class RoundRunner:
    """The request table and the buffers of an engine, refreshed round by round.

    Attributes:
        settings: sizes.
        device: where table and buffers are.
        planner: the planner of all refreshes.
        samples: (seconds, live tokens, requests) of each round so far.
        busiest: the round with the most requests so far, the last of them.
        mismatches: entries that differed from the reference.
        first_differences: the first few of them, in words.
    """

    def __init__(self, settings: RoundSettings, *, backend: str = "auto", device: str | torch.device = "cpu") -> None:
        """Allocates the table and the buffers on ``device``.

        Raises:
            QsaGroupError: the planner refuses the backend or the sizes.
        """
        self.settings = settings
        self.device = torch.device(device)
        shape = (settings.slots, settings.max_pages, settings.page_size)
        self._pages = torch.zeros(shape, dtype=torch.int32, device=self.device)
        self._kept_pages = torch.zeros_like(self._pages)  # The reference's own, which no refresh is given.
        self._within_page = torch.arange(settings.page_size, dtype=torch.int32, device=self.device)
        table = RequestTable(
            self._pages.view(settings.slots, settings.table_width),
            compress_ratio=settings.compress_ratio,
            page_size=settings.page_size,
        )
        self._buckets = settings.buckets
        capacity = max(256, 4 * len(self._buckets) + settings.steps)
        self.planner = ReplayPlanner(table, backend=backend, cache_capacity=capacity)
        draft_fields = SHARED_INDEX_FIELDS if settings.index_sharing else FIELDS
        self._draft = self._pass("decode", draft_fields, settings.steps, 1)
        self._verify = self._pass("target_verify", FIELDS, 1, settings.draft_tokens)
        self._extend = self._pass("draft_extend", FIELDS, 1, settings.draft_tokens)
        self._passes = (self._draft, self._verify, self._extend)
        self._plan_ns: list[int] = []
        self.samples: list[tuple[float, int, int]] = []
        self.busiest: Round | None = None
        self.mismatches = 0
        self.first_differences: list[str] = []

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return len(self.samples)

    def bucket(self, batch: int) -> int:
        """The smallest bucket that holds a batch."""
        return self._buckets[bisect.bisect_left(self._buckets, batch)]

    def write_pages(self, entries: torch.Tensor) -> None:
        """Writes pages into the request table: (slot, page number in the request, page id) each, int64 [pages, 3]."""
        slots, numbers, ids = entries.to(self.device).unbind(1)
        tokens = ids.to(torch.int32)[:, None] * self.settings.page_size + self._within_page
        self._pages[slots, numbers] = tokens
        self._kept_pages[slots, numbers] = tokens

    def run(self, round_: Round) -> None:
        """Takes over the round's new pages, then refreshes draft, verify and extend, and checks each."""
        batch = len(round_.seq_lens)
        self.samples.append((round_.time, sum(round_.seq_lens), batch))
        if self.busiest is None or batch >= len(self.busiest.seq_lens):
            self.busiest = round_
        if round_.pages:
            self.write_pages(torch.tensor(round_.pages))
        for pass_, inputs in zip(self._passes, self._inputs(round_), strict=True):
            self._refresh(pass_, batch, inputs)

    def calls(self, round_: Round, *, grouped: bool) -> list[Call]:
        """The refreshes of a round as calls, with the draft steps in one plan, or each planned alone."""
        bucket = self.bucket(len(round_.seq_lens))
        live, _, grown = self._inputs(round_)
        steps = self._draft.buffers(bucket)
        if grouped:
            label = "draft 1" if len(steps) == 1 else f"draft 1-{len(steps)}"
            draft = [Call(label, self._plan(self._draft, bucket), live)]
        else:
            alone = [self.planner.plan([step], "decode") for step in steps]
            draft = [Call(f"draft {number}", plan, live) for number, plan in enumerate(alone, 1)]
        verify = Call("verify", self._plan(self._verify, bucket), live)
        return [*draft, verify, Call("extend", self._plan(self._extend, bucket), grown)]

    def finish(self) -> None:
        """Checks what is checked once: no refresh wrote to the table, and no plan flagged a row."""
        if not torch.equal(self._pages, self._kept_pages):
            self._report(1, "the request table was changed by a refresh")
        for pass_ in self._passes:
            for bucket in pass_.steps:
                status = self._plan(pass_, bucket).status()
                if status:
                    self._report(1, f"{pass_.mode}, bucket {bucket}: status {status!r}")

    def summary(self) -> dict[str, Any]:
        """Counts and host times so far, as plain data; times in microseconds."""
        stats = self.planner.stats()  # Before the look-ups of this summary.
        plans = [self._plan(pass_, bucket) for pass_ in self._passes for bucket in pass_.steps]
        round_ns = [sum(parts) for parts in zip(*(pass_.host_ns for pass_ in self._passes), strict=True)]
        return {
            "rounds": self.rounds,
            "checked_refreshes": sum(len(pass_.host_ns) for pass_ in self._passes),
            "mismatches": self.mismatches,
            "first_differences": self.first_differences,
            "launches": {pass_.mode: pass_.launches for pass_ in self._passes},
            "step_by_step": {pass_.mode: pass_.step_by_step for pass_ in self._passes},
            "groups": {pass_.mode: self._groups(pass_) for pass_ in self._passes},
            "buckets": {pass_.mode: sorted(pass_.steps) for pass_ in self._passes},
            "host_us": {
                "round": _percentiles(round_ns),
                **{pass_.mode: _percentiles(pass_.host_ns) for pass_ in self._passes},
                "plan_lookup": _percentiles(self._plan_ns),
            },
            "planner": stats,
            "fallbacks": sorted({text for plan in plans for text in plan.explain().data["fallbacks"]}),
        }

    def _pass(self, mode: Mode, fields: Iterable[str], steps: int, rows_per_request: int) -> _Pass:
        rows = self.settings.max_batch * rows_per_request
        sizes = (steps, rows, self.settings.compress_ratio, self.settings.max_pages)
        arena = Arena(*sizes, self.device, fields=fields)
        return _Pass(mode, arena, arena.fresh(), rows_per_request)

    def _plan(self, pass_: _Pass, bucket: int) -> ReplayPlan:
        drafted = pass_.rows_per_request if pass_.mode == "target_verify" else None
        return self.planner.plan(pass_.buffers(bucket), pass_.mode, draft_token_num=drafted)

    def _inputs(self, round_: Round) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """What ``run`` is given for draft, verify and extend, padded to the bucket as an engine pads."""
        padding = self.bucket(len(round_.seq_lens)) - len(round_.seq_lens)
        grown = [length + extend for length, extend in zip(round_.seq_lens, round_.extend_lens, strict=True)]
        rows = ([*round_.seq_lens, *[1] * padding], [*grown, *[1] * padding], [*round_.slots, *[0] * padding])
        seq_lens, grown_lens, slots = torch.tensor(rows, device=self.device)
        extend_lens = torch.tensor([*round_.extend_lens, *[0] * padding], dtype=torch.int32, device=self.device)
        live = (seq_lens, slots, padding)
        return live, live, (grown_lens, slots, padding, extend_lens)

    def _refresh(self, pass_: _Pass, batch: int, inputs: tuple[Any, ...]) -> None:
        bucket = self.bucket(batch)
        pass_.expected.poison()
        reference.refresh(self._layout(pass_, bucket), _live_inputs(batch, *inputs), pass_.expected)
        pass_.arena.poison()
        begin = time.perf_counter_ns()
        plan = self._plan(pass_, bucket)
        ready = time.perf_counter_ns()
        plan.run(*inputs)
        end = time.perf_counter_ns()
        self._plan_ns.append(ready - begin)
        pass_.host_ns.append(end - ready)
        pass_.launches += len(plan.groups)
        pass_.step_by_step += len(plan.steps)
        difference = pass_.arena.difference(pass_.expected)
        if difference is not None:
            self._report(difference.count, f"round {self.rounds}, {pass_.mode}, bucket {bucket}: {difference}")

    def _layout(self, pass_: _Pass, bucket: int) -> reference.Layout:
        if bucket not in pass_.layouts:
            settings = self.settings
            pass_.layouts[bucket] = reference.Layout(
                self._kept_pages.view(settings.slots, settings.table_width),
                settings.compress_ratio,
                settings.page_size,
                bucket * pass_.rows_per_request,
                pass_.mode,
                range(1, pass_.arena.steps + 1),
                pass_.rows_per_request,
            )
        return pass_.layouts[bucket]

    def _report(self, count: int, text: str) -> None:
        self.mismatches += count
        if len(self.first_differences) < _MOST_REPORTED:
            self.first_differences.append(text)

    def _groups(self, pass_: _Pass) -> list[list[int]]:
        return [list(group) for group in self._plan(pass_, max(pass_.steps)).groups] if pass_.steps else []


def _live_inputs(
    batch: int, seq_lens: torch.Tensor, slots: torch.Tensor, padding: int, extend_lens: torch.Tensor | None = None
) -> reference.LiveInputs:
    """The batch alone, as the reference takes it: what lies behind the batch is inert without any padding."""
    extend = None if extend_lens is None else extend_lens[:batch].to(torch.int64)
    return reference.LiveInputs(seq_lens[:batch], slots[:batch], 0, extend)


def _percentiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Median and 99th percentile in microseconds; zeros of nothing."""
    if not nanoseconds:
        return {"median": 0.0, "p99": 0.0}
    ordered = sorted(nanoseconds)
    return {
        "median": statistics.median(ordered) / 1e3,
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1e3,
    }
