"""Refreshes every round through plans, on buffers laid out as SGLang's draft backend lays them out, and checks them."""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .check import FIELDS, SHARED_INDEX_FIELDS, Arena, Rows, decode_rows, extend_rows, verify_rows, write_expected
from .planner import ReplayPlan, ReplayPlanner, RequestTable, StepBuffers
from .rounds import Round, RoundSettings

__all__ = ["Lane", "RoundRunner", "Segment", "Timeline"]

Mode = Literal["decode", "target_verify", "draft_extend"]
_MOST_REPORTED = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """One call of ``run`` in a timeline, host time in microseconds.

    Attributes:
        label: what it refreshes.
        mode: the mode of its plan.
        start: microseconds after the first call began.
        length: microseconds the call took.
    """

    label: str
    mode: str
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class Lane:
    """The calls of one round, one way of doing it.

    Attributes:
        name: the way.
        segments: the calls in order; means over the tenth of the repeats whose totals are nearest to the median.
        launches: launches that these calls make.
        total: median host time of all calls, microseconds.
        p10: its 10th percentile.
        p90: its 90th percentile.
    """

    name: str
    segments: list[Segment]
    launches: int
    total: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The same round refreshed step by step and grouped, measured in this process.

    Attributes:
        batch: requests of the round.
        bucket: rows it is padded to.
        repeats: measurements behind each median.
        step_by_step: each step planned alone.
        grouped: all steps planned together.
    """

    batch: int
    bucket: int
    repeats: int
    step_by_step: Lane
    grouped: Lane


@dataclass
class _Pass:
    """One of the three refreshes of a round."""

    mode: Mode
    arena: Arena
    rows_per_request: int
    names: tuple[str, ...]
    steps: dict[int, list[StepBuffers]] = field(default_factory=dict)
    host_ns: list[int] = field(default_factory=list)
    launches: int = 0
    step_by_step: int = 0

    def buffers(self, bucket: int) -> list[StepBuffers]:
        """The steps' buffers, sliced to a bucket as a graph capture slices them; made once a bucket."""
        found = self.steps.get(bucket)
        if found is None:
            rows = bucket * self.rows_per_request
            found = [
                StepBuffers(number + 1, **{name: buffer[:rows] for name, buffer in step.items()})
                for number, step in enumerate(self.arena.steps)
            ]
            self.steps[bucket] = found
        return found


class RoundRunner:
    """Keeps the request table and all buffers, and refreshes them round by round.

    Attributes:
        settings: sizes.
        planner: the planner that all refreshes go through.
        rounds: rounds so far.
        mismatches: entries that differed from the reference.
        first_differences: the first few of them, in words.
        plan_ns: host time of each look-up of a plan, nanoseconds.
    """

    def __init__(self, settings: RoundSettings, *, backend: str = "auto", device: str | torch.device = "cpu") -> None:
        """Allocates the table and the buffers on ``device``."""
        self.settings = settings
        self.device = torch.device(device)
        shape = (settings.slots, settings.max_pages, settings.page_size)
        self._host_pages = torch.zeros(shape, dtype=torch.int32)
        self._pages = torch.zeros(shape, dtype=torch.int32, device=self.device)
        self._within_page = torch.arange(settings.page_size, dtype=torch.int32)
        table = RequestTable(
            self._pages.view(settings.slots, settings.table_width),
            compress_ratio=settings.compress_ratio,
            page_size=settings.page_size,
        )
        capacity = max(256, 4 * len(settings.buckets) + settings.steps)
        self.planner = ReplayPlanner(table, backend=backend, cache_capacity=capacity)
        draft_fields = SHARED_INDEX_FIELDS if settings.index_sharing else FIELDS
        self._decode = self._pass("decode", draft_fields, settings.steps, 1)
        self._verify = self._pass("target_verify", FIELDS, 1, settings.draft_tokens)
        self._extend = self._pass("draft_extend", FIELDS, 1, settings.draft_tokens)
        # The runner's own buffers, where a padded batch is copied to; an unpadded one is handed over as it is.
        self._seq_lens = torch.ones(settings.max_batch, dtype=torch.int64, device=self.device)
        self._slots = torch.zeros(settings.max_batch, dtype=torch.int64, device=self.device)
        self._extend_lens = torch.zeros(settings.max_batch, dtype=torch.int32, device=self.device)
        self.rounds = 0
        self.mismatches = 0
        self.first_differences: list[str] = []
        self.plan_ns: list[int] = []

    def run(self, item: Round) -> None:
        """Takes over the round's new pages, then refreshes draft, verify and extend, and checks each."""
        self.rounds += 1
        self._write_pages(item.pages)
        lengths, slots, extend = (torch.tensor(v) for v in (item.seq_lens, item.slots, item.extend_lens))
        bucket = self._bucket(len(lengths))
        grown = lengths + extend
        inputs = self._inputs(bucket, lengths, slots)

        def decode_row_sets() -> list[Rows]:
            return [decode_rows(bucket, lengths, slots, step + 1) for step in range(self.settings.steps)]

        self._refresh(self._decode, bucket, inputs, decode_row_sets)
        rows = bucket * self.settings.draft_tokens
        drafted = self.settings.draft_tokens
        self._refresh(self._verify, bucket, inputs, lambda: [verify_rows(rows, lengths, slots, drafted)])
        inputs = self._inputs(bucket, grown, slots, extend.to(torch.int32))
        self._refresh(self._extend, bucket, inputs, lambda: [extend_rows(rows, grown, slots, extend)])

    def finish(self) -> None:
        """Checks what is checked once: that no refresh touched the table, and that no plan flagged a row."""
        if not torch.equal(self._pages.cpu(), self._host_pages):
            self._report(1, "the request table was changed by a refresh")
        for one in self._passes:
            for bucket in one.steps:
                status = self._plan(one, bucket).status()
                if status:
                    self._report(1, f"{one.mode}, bucket {bucket}: status {status!r}")

    def timeline(self, item: Round, *, repeats: int = 200, seconds: float = math.inf) -> Timeline:
        """Measures the host time of one round's refreshes, step by step and grouped, turn by turn.

        Args:
            item: the round; its pages are written first.
            repeats: how often each way is measured.
            seconds: stop measuring after so long, with fewer repeats, but with one at least.
        """
        self._write_pages(item.pages)
        lengths, slots, extend = (torch.tensor(v) for v in (item.seq_lens, item.slots, item.extend_lens))
        bucket = self._bucket(len(lengths))
        live = self._inputs(bucket, lengths, slots)
        grown = tuple(
            value.clone() if isinstance(value, torch.Tensor) else value
            for value in self._inputs(bucket, lengths + extend, slots, extend.to(torch.int32))
        )
        live = self._inputs(bucket, lengths, slots)
        steps = self._decode.buffers(bucket)
        alone = [self.planner.plan([step], "decode") for step in steps]
        tail = [("verify", self._plan(self._verify, bucket), live), ("extend", self._plan(self._extend, bucket), grown)]
        ways: dict[str, list[tuple[str, ReplayPlan, tuple[Any, ...]]]] = {
            "a launch a step": [(f"draft {i + 1}", plan, live) for i, plan in enumerate(alone)] + tail,
            "grouped": [(_draft_label(len(steps)), self._plan(self._decode, bucket), live), *tail],
        }
        times: dict[str, list[list[int]]] = {name: [] for name in ways}
        stop = time.monotonic() + seconds
        for turn in range(-min(10, repeats), repeats):
            if times["grouped"] and time.monotonic() > stop:
                break
            for name, calls in ways.items():
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                marks = _timed(calls)
                if turn == 0:
                    times[name].clear()  # The turns before were for warming up.
                times[name].append(marks)
        lanes = {name: _lane(name, calls, times[name]) for name, calls in ways.items()}
        return Timeline(len(lengths), bucket, len(times["grouped"]), lanes["a launch a step"], lanes["grouped"])

    def summary(self) -> dict[str, Any]:
        """Counts and host times so far, as plain data; times in microseconds."""
        stats = self.planner.stats()
        per_round = [sum(parts) for parts in zip(*(one.host_ns for one in self._passes), strict=True)]
        return {
            "rounds": self.rounds,
            "checked_refreshes": sum(len(one.host_ns) for one in self._passes),
            "mismatches": self.mismatches,
            "first_differences": self.first_differences,
            "launches": {one.mode: one.launches for one in self._passes},
            "step_by_step": {one.mode: one.step_by_step for one in self._passes},
            "groups": {one.mode: self._groups(one) for one in self._passes},
            "buckets": {one.mode: sorted(one.steps) for one in self._passes},
            "host_us": {
                "round": _percentiles(per_round),
                **{one.mode: _percentiles(one.host_ns) for one in self._passes},
                "plan_lookup": _percentiles(self.plan_ns),
            },
            "planner": stats,
            "fallbacks": self._fallbacks(),
        }

    @property
    def _passes(self) -> tuple[_Pass, _Pass, _Pass]:
        return self._decode, self._verify, self._extend

    def _pass(self, mode: Mode, names: tuple[str, ...], steps: int, rows_per_request: int) -> _Pass:
        arena = Arena(
            names,
            steps=steps,
            rows=self.settings.max_batch * rows_per_request,
            compress_ratio=self.settings.compress_ratio,
            max_pages=self.settings.max_pages,
            device=self.device,
        )
        return _Pass(mode, arena, rows_per_request, names)

    def _plan(self, one: _Pass, bucket: int) -> ReplayPlan:
        drafted = one.rows_per_request if one.mode == "target_verify" else None
        return self.planner.plan(one.buffers(bucket), one.mode, draft_token_num=drafted)

    def _bucket(self, batch: int) -> int:
        buckets = self.settings.buckets
        return buckets[bisect.bisect_left(buckets, batch)]

    def _write_pages(self, entries: Sequence[tuple[int, int, int]]) -> None:
        if not entries:
            return
        slots, numbers, ids = torch.tensor(entries).unbind(1)
        tokens = ids.to(torch.int32)[:, None] * self.settings.page_size + self._within_page
        self._host_pages[slots, numbers] = tokens
        self._pages[slots.to(self.device), numbers.to(self.device)] = tokens.to(self.device)

    def _inputs(
        self, bucket: int, lengths: torch.Tensor, slots: torch.Tensor, extend: torch.Tensor | None = None
    ) -> tuple[Any, ...]:
        """Arguments of ``run``: the batch's own tensors, or slices of the runner's buffers where there is padding."""
        batch = len(lengths)
        if batch == bucket:
            extend_lens = None if extend is None else extend.to(self.device)
            return lengths.to(self.device), slots.to(self.device), 0, extend_lens
        seq_lens, pool, extend_lens = self._seq_lens[:bucket], self._slots[:bucket], None
        seq_lens[:batch].copy_(lengths)
        seq_lens[batch:].fill_(1)
        pool[:batch].copy_(slots)
        pool[batch:].zero_()
        if extend is not None:
            extend_lens = self._extend_lens[:bucket]
            extend_lens[:batch].copy_(extend)
        return seq_lens, pool, bucket - batch, extend_lens

    def _refresh(self, one: _Pass, bucket: int, inputs: tuple[Any, ...], row_sets: Callable[[], list[Rows]]) -> None:
        one.arena.poison()
        begin = time.perf_counter_ns()
        plan = self._plan(one, bucket)
        ready = time.perf_counter_ns()
        plan.run(*inputs)
        end = time.perf_counter_ns()
        self.plan_ns.append(ready - begin)
        one.host_ns.append(end - ready)
        one.launches += len(plan.groups)
        one.step_by_step += len(plan.steps)
        table = self._host_pages.view(self.settings.slots, self.settings.table_width)
        for rows, buffers in zip(row_sets(), one.arena.expected, strict=True):
            count = len(rows.lengths)
            sliced = {name: buffer[:count] for name, buffer in buffers.items()}
            write_expected(sliced, rows, table, self.settings.compress_ratio, self.settings.page_size)
        for difference in one.arena.differences():
            self._report(difference.count, f"round {self.rounds}, {one.mode}, bucket {bucket}: {difference}")

    def _report(self, count: int, text: str) -> None:
        self.mismatches += count
        if len(self.first_differences) < _MOST_REPORTED:
            self.first_differences.append(text)

    def _groups(self, one: _Pass) -> list[list[int]]:
        return [list(group) for group in self._plan(one, max(one.steps)).groups] if one.steps else []

    def _fallbacks(self) -> list[str]:
        texts: list[str] = []
        for one in self._passes:
            for bucket in one.steps:
                texts += self._plan(one, bucket).explain().data["fallbacks"]
        return sorted(set(texts))


def _draft_label(steps: int) -> str:
    return "draft 1" if steps == 1 else f"draft 1-{steps}"


def _timed(calls: Sequence[tuple[str, ReplayPlan, tuple[Any, ...]]]) -> list[int]:
    """Runs the calls; returns the times at their borders, one more than calls."""
    clock = time.perf_counter_ns
    marks = [clock()]
    for _, plan, inputs in calls:
        plan.run(*inputs)
        marks.append(clock())
    return marks


def _lane(name: str, calls: Sequence[tuple[str, ReplayPlan, tuple[Any, ...]]], times: list[list[int]]) -> Lane:
    times = sorted(times, key=lambda marks: marks[-1] - marks[0])
    totals = [(marks[-1] - marks[0]) / 1e3 for marks in times]
    repeats = len(times)
    middle = times[repeats * 9 // 20 : repeats * 11 // 20 + 1]
    segments = []
    start = 0.0
    for number, (label, plan, _) in enumerate(calls):
        length = statistics.fmean(marks[number + 1] - marks[number] for marks in middle) / 1e3
        segments.append(Segment(label, plan.mode, start, length))
        start += length
    launches = sum(len(plan.groups) for _, plan, _ in calls)
    return Lane(name, segments, launches, statistics.median(totals), totals[repeats // 10], totals[repeats * 9 // 10])


def _percentiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Median and 99th percentile in microseconds; zeros of nothing."""
    if not nanoseconds:
        return {"median": 0.0, "p99": 0.0}
    ordered = sorted(nanoseconds)
    return {
        "median": statistics.median(ordered) / 1e3,
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1e3,
    }
