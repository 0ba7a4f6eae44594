"""The host path without a GPU: CPU tensors, and a driver that does nothing."""

from __future__ import annotations

import sys
from typing import Any

from lib import bench_core
from lib.environment import environment
from lib.planners import Planners
from lib.timing import looped, no_gc, summary
from lib.workload import Workload
from qsa_group import FIELDS
from qsa_group.launch import DirectBackend, StubDriver

from .options import STUB_POINTS

__all__ = ["measure_stub"]


def measure_stub(quick: bool) -> dict[str, Any]:
    """Microseconds of a call from Python to the stubbed driver and back, and of an empty call of the same shape.

    `bare_call_us` is None where the core has no empty call.
    """
    batches, calls = (10, 300) if quick else (41, 2000)
    workload = Workload(FIELDS, "cpu", max_batch=64)
    table = workload.set_context(STUB_POINTS[0].context)
    result: dict[str, Any] = {"mode": "stub", "environment": environment(), "unit": "us a call", "points": []}
    empty = bench_core.empty_call()
    if empty is None:
        print(bench_core.MISSING, file=sys.stderr)
    for point in STUB_POINTS:
        planners = Planners(table, direct=DirectBackend(StubDriver()))
        plan = planners.plan("direct", [workload.buffers(point.batch, step) for step in range(point.steps)])
        sets = workload.live(point.batch, point.live, room=16)
        loops = {"rust_call_us": looped(plan.run, sets)}
        if empty is not None:
            loops["bare_call_us"] = looped(empty, [(*inputs, 0) for inputs in sets])
        samples: dict[str, list[float]] = {name: [] for name in loops}
        with no_gc():
            for timed in loops.values():
                timed(calls)
            for _ in range(batches):
                for name, timed in loops.items():
                    samples[name].append(timed(calls) / calls)
        summaries = {name: summary(values, 1e6) for name, values in samples.items()}
        result["points"].append({"batch": point.batch, "steps": point.steps, **summaries})
        planners.clear()
    first = result["points"][0]
    for name in ("rust_call_us", "bare_call_us"):
        result[name] = first[name]["median"] if name in first else None
    return result
