"""Host time of a grid point: SGLang's launches, ours, and other launchers of our kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lib.bench_core import bare_launches
from lib.results import attempt
from lib.timing import Call, TimedCall, host_times, looped, summary

from .launchers import c_launcher, recorded_launch, torch_static
from .point import PointCalls

__all__ = ["measure_host"]


def measure_host(point: PointCalls, empty: Call, batches: int) -> None:
    """Fills `host_us` and `host_turns` of the row.

    Args:
        point: the point.
        empty: starts an empty kernel.
        batches: samples a call.
    """
    calls = _sglang(point)
    if "direct" in point.plans:
        calls.append(TimedCall("direct", looped(point.plans["direct"].run, point.inputs.ours)))
        # Right after `direct`, since their ratio is the finest of all.
        calls += _other_launchers(point)
    if "triton" in point.plans:
        calls.append(TimedCall("triton", looped(point.plans["triton"].run, point.inputs.ours)))
    calls.append(TimedCall("empty", looped(empty, point.inputs.sglang)))
    host_times(calls, torch.cuda.synchronize, batches=batches)
    row = point.row
    row["host_us"] = {c.name: {**summary(c.samples, 1e6), "calls": c.calls} for c in calls if c.samples}
    row["host_turns"] = {c.name: [round(1e6 * sample, 4) for sample in c.samples] for c in calls}
    for call in calls:
        row["errors"].update(call.errors)


def _sglang(point: PointCalls) -> list[TimedCall]:
    steps = len(point.steps)
    launches = {"sglang_per_step": steps, "sglang_casts": 4 * steps}
    if point.form.mode == "draft_extend":
        launches["sglang_fused"] = 2
    return [
        TimedCall(name, looped(call, point.inputs.sglang), launches.get(name, 1)) for name, call in point.sglang.items()
    ]


def _other_launchers(point: PointCalls) -> list[TimedCall]:
    plan, inputs = point.plans["direct"], point.inputs.ours[0]
    major, minor = torch.cuda.get_device_capability(plan.device)
    errors = point.row["errors"]
    calls = []
    bare = attempt(errors, "bare", partial(bare_launches, plan, inputs))
    if bare is not None:
        calls.append(TimedCall("bare", bare))
    makers: dict[str, Callable[[Any], Call]] = {"triton_c_launcher": c_launcher, "torch_static": torch_static}
    launch = attempt(errors, "recorded launch", partial(recorded_launch, plan, inputs, 10 * major + minor))
    if launch is None:
        return calls
    for name, make in makers.items():
        call = attempt(errors, name, partial(make, launch))
        if call is not None:
            calls.append(TimedCall(name, looped(call, [()])))
    return calls
