"""A refresh with a graph of small kernels, which stands for a draft: before the graph, or recorded in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lib.counters import launches_of
from lib.gpu_timing import record
from lib.planners import Planners
from lib.results import attempt
from lib.timing import Call, LiveSet, TimedCall, host_times, looped, summary

from .point import PointCalls

__all__ = ["RoundBench"]

KERNELS = 60
"""Small kernels in the graph."""

_PLAYED = 20
"""Rounds over which launches outside the graph are counted."""

Play = Callable[[], Any]


class RoundBench:
    """Measures rounds. The graph of small kernels is made once."""

    def __init__(self, device: torch.device) -> None:
        self._work = torch.zeros(1024, device=device)
        self._plain = record(self._draft)
        self._last_rounds: dict[str, Play] = {}
        self._last_point: PointCalls | None = None  # The last rounds refer to its plans.

    def measure(self, point: PointCalls, planners: Planners, batches: int) -> None:
        """Fills `round` of the row: the host's time, and the time until the device is done.

        Args:
            point: the point.
            planners: count the launches.
            batches: samples a round.
        """
        rounds = self._rounds(point)
        outside = _launches_outside(rounds["recorded"], planners) if "recorded" in rounds else 0.0
        enqueued = _times(rounds, batches)
        done = _times({name: _until_done(play) for name, play in rounds.items()}, batches)
        base = enqueued["none"]
        figures: dict[str, Any] = {}
        for name, samples in enqueued.items():
            if not samples:
                continue
            figures[name] = {"host_us": summary(samples, 1e6)}
            if done[name]:
                figures[name]["round_us"] = summary(done[name], 1e6)
            added = [a - b for a, b in zip(samples, base, strict=False)]
            figures[name]["added_us"] = summary(added, 1e6)
        if "recorded" in figures:
            figures["recorded"]["launches"] = outside
        point.row["round"] = figures
        self._last_rounds, self._last_point = rounds, point

    def profiled_launches(self) -> dict[str, Any]:
        """What the profiler sees started a round, for the last point. Last of all, since it slows what follows."""
        counts: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for name, play in self._last_rounds.items():
            counts[name] = attempt(errors, name, partial(launches_of, play))
        return {**counts, **errors}

    def _draft(self) -> None:
        for _ in range(KERNELS):
            self._work.add_(1)

    def _rounds(self, point: PointCalls) -> dict[str, Play]:
        rounds: dict[str, Play] = {"none": self._plain.replay}
        if "slot" in point.plans:
            run, inputs = point.plans["slot"].run, point.inputs.ours[0]

            def enqueue() -> None:
                run(*inputs)
                self._draft()

            recorded = attempt(point.row["errors"], "recorded", partial(record, enqueue))
            if recorded is not None:
                rounds["recorded"] = recorded.replay
        if "direct" in point.plans:
            rounds["direct"] = self._refreshed(point.plans["direct"].run, point.inputs.ours[0])
        for name, call in point.sglang.items():
            if name != "sglang_per_step":
                rounds[name] = self._refreshed(call, point.inputs.sglang[0])
        return rounds

    def _refreshed(self, call: Call, args: LiveSet) -> Play:
        replay = self._plain.replay

        def play() -> None:
            call(*args)
            replay()

        return play


def _launches_outside(play: Play, planners: Planners) -> float:
    """Launches a round that our planners count outside the graph."""
    before = planners.launches()
    for _ in range(_PLAYED):
        play()
    return (planners.launches() - before) / _PLAYED


def _times(rounds: dict[str, Play], batches: int) -> dict[str, list[float]]:
    calls = [TimedCall(name, looped(play, [()]), KERNELS + 8) for name, play in rounds.items()]
    host_times(calls, torch.cuda.synchronize, batches=batches, budget_s=0.001, drain_s=0.004)
    return {call.name: call.samples for call in calls}


def _until_done(play: Play) -> Play:
    wait = torch.cuda.current_stream().synchronize

    def call() -> None:
        play()
        wait()

    return call
