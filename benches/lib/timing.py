"""Host time: samples of calls that take turns, and their summary."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .results import attempt

__all__ = ["Call", "LiveSet", "TimedCall", "host_times", "looped", "no_gc", "summary"]

Call = Callable[..., Any]
LiveSet = tuple[Any, ...]
"""Positional arguments of one refresh."""

QUEUE = 600
"""Launches that may be under way at once. The driver blocks the caller at about 1,024."""


def summary(samples: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Median, 10th and 90th percentile of the samples, each times `scale`, and their number."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    p10, p90 = (ordered[round(last * share)] for share in (0.1, 0.9))
    return {
        "median": round(statistics.median(ordered) * scale, 4),
        "p10": round(p10 * scale, 4),
        "p90": round(p90 * scale, 4),
        "samples": len(ordered),
    }


@contextmanager
def no_gc() -> Iterator[None]:
    """Keeps the garbage collector out of the measured time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def looped(call: Call, sets: Sequence[LiveSet]) -> Callable[[int], float]:
    """Times a plain Python loop over `call(*inputs)` that walks through the input sets.

    Returns:
        A function of the number of calls. The function returns the seconds that the loop took.
    """
    inputs_by_count: dict[int, list[LiveSet]] = {}

    def timed(count: int) -> float:
        inputs = inputs_by_count.setdefault(count, [sets[i % len(sets)] for i in range(count)])
        begin = time.perf_counter_ns()
        for args in inputs:
            call(*args)
        return (time.perf_counter_ns() - begin) * 1e-9

    return timed


@dataclass
class TimedCall:
    """A call whose host time is measured.

    Attributes:
        name: name in the result.
        timed: `timed(n)` enqueues n calls and returns the seconds that the host spent on them.
        launches: launches of one call.
        errors: the error that ended the measurement, by name.
        samples: seconds a call, one entry a batch.
        calls: calls of a batch.
    """

    name: str
    timed: Callable[[int], float]
    launches: int = 1
    errors: dict[str, str] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    calls: int = 0

    def calibrate(self, sync: Call, budget_s: float, drain_s: float) -> bool:
        """Chooses the calls of a batch."""
        self.timed(2)
        sync()
        begin = time.perf_counter()
        host = self.timed(4) / 4
        sync()
        wall = (time.perf_counter() - begin) / 4
        calls = min(budget_s / max(host, 1e-7), drain_s / max(wall, 1e-7), QUEUE / self.launches)
        self.calls = max(4, min(200, int(calls)))
        return True

    def sample(self, sync: Call) -> bool:
        """Measures one batch, which starts on an idle device."""
        sync()
        self.timed(2)
        sync()
        self.samples.append(self.timed(self.calls) / self.calls)
        return True


def host_times(
    calls: Sequence[TimedCall], sync: Call, *, batches: int = 11, budget_s: float = 0.004, drain_s: float = 0.02
) -> None:
    """Fills the `samples` of each call, the calls taking turns batch by batch.

    A batch has as many calls as fit into `budget_s` seconds of the host and `drain_s` seconds of the device, and fewer
    than fill the launch queue. A call that raises keeps the error and is measured no further.
    """
    active = list(calls)
    with no_gc():
        active = [c for c in active if attempt(c.errors, c.name, partial(c.calibrate, sync, budget_s, drain_s))]
        for _ in range(batches):
            active = [c for c in active if attempt(c.errors, c.name, partial(c.sample, sync))]
        sync()
