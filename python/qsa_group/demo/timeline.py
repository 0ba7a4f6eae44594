"""The host time of one round's refreshes, measured both ways: each step planned alone, and all planned together."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .rounds import Round
from .runner import Call, RoundRunner

__all__ = ["Lane", "Segment", "Timeline", "measure"]

_WARM_UP = 10


@dataclass(frozen=True, slots=True)
class Segment:
    """One call of ``run``.

    Attributes:
        label: what the call refreshes.
        mode: the mode of its plan.
        start: microseconds after the first call began.
        length: microseconds that the call took.
    """

    label: str
    mode: str
    start: float
    length: float


@dataclass(frozen=True, slots=True)
class Lane:
    """The calls of one round, one way of doing it.

    Attributes:
        segments: the calls in order; means over the tenth of the repeats whose totals are nearest to the median.
        launches: launches that the calls make.
        total: host time of all calls in microseconds, the median.
        p10: the 10th percentile.
        p90: the 90th percentile.
    """

    segments: list[Segment]
    launches: int
    total: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The same round refreshed both ways, in this process.

    Attributes:
        batch: requests of the round.
        bucket: requests that the batch is padded to.
        repeats: measurements behind each median.
        step_by_step: each step planned alone.
        grouped: all steps planned together.
    """

    batch: int
    bucket: int
    repeats: int
    step_by_step: Lane
    grouped: Lane


def measure(runner: RoundRunner, round_: Round, *, repeats: int = 200, seconds: float = math.inf) -> Timeline:
    """Measures the refreshes of a round, both ways in turn.

    Args:
        runner: its plans and buffers are used.
        round_: the round; its pages must have been written.
        repeats: how often each way is measured.
        seconds: stop after so long, with fewer repeats but with one at least.
    """
    ways = [runner.calls(round_, grouped=grouped) for grouped in (False, True)]
    for _ in range(min(_WARM_UP, repeats)):
        for calls in ways:
            _marks(runner, calls)
    turns: list[list[list[int]]] = []
    stop = time.monotonic() + seconds
    while len(turns) < repeats and (not turns or time.monotonic() < stop):
        turns.append([_marks(runner, calls) for calls in ways])
    lanes = [_lane(calls, [turn[number] for turn in turns]) for number, calls in enumerate(ways)]
    batch = len(round_.seq_lens)
    return Timeline(batch, runner.bucket(batch), len(turns), *lanes)


def _marks(runner: RoundRunner, calls: Sequence[Call]) -> list[int]:
    """Runs the calls; returns the times in nanoseconds before the first and after each."""
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
    marks = [time.perf_counter_ns()]
    for call in calls:
        call.plan.run(*call.inputs)
        marks.append(time.perf_counter_ns())
    return marks


def _lane(calls: Sequence[Call], samples: list[list[int]]) -> Lane:
    samples.sort(key=lambda marks: marks[-1] - marks[0])
    totals = [(marks[-1] - marks[0]) / 1e3 for marks in samples]
    tenths = [len(samples) * number // 20 for number in (2, 9, 11, 18)]
    segments = []
    start = 0.0
    for number, call in enumerate(calls):
        middle = samples[tenths[1] : tenths[2] + 1]
        length = statistics.fmean(marks[number + 1] - marks[number] for marks in middle) / 1e3
        segments.append(Segment(call.label, call.plan.mode, start, length))
        start += length
    launches = sum(len(call.plan.groups) for call in calls)
    return Lane(segments, launches, statistics.median(totals), totals[tenths[0]], totals[tenths[3]])
