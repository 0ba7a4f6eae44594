"""Everything that is measured at a grid point, made and called once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from lib.planners import Planners
from lib.results import attempt
from lib.sglang_kernels import Baselines
from lib.timing import Call, LiveSet
from lib.workload import Tensors, Workload
from qsa_group import ReplayPlan

from .inputs import Form, LiveInputs, live_inputs
from .options import Point
from .ratios import Row

__all__ = ["PointCalls", "prepare_point"]

_PLANS = (
    # Name of the plan, backend, padding rule.
    ("direct", "direct", "count"),
    ("triton", "triton", "count"),
    ("slot", "direct", "slot"),
)


@dataclass(frozen=True)
class PointCalls:
    """The calls of a grid point and their inputs.

    Attributes:
        row: the row of the result, which measurements fill.
        form: what all points have in common.
        steps: the buffers of each step.
        sglang: SGLang's launches by name.
        plans: our plans by name: "direct" and "triton" with counted padding, "slot" direct with padding by slot.
        inputs: the input sets.
    """

    row: Row
    form: Form
    steps: list[Tensors]
    sglang: dict[str, Call]
    plans: dict[str, ReplayPlan]
    inputs: LiveInputs


def prepare_point(
    point: Point, form: Form, row: Row, workload: Workload, planners: Planners, sglang: ModuleType | None
) -> PointCalls:
    """Makes and plans everything that a point measures.

    Writes `rows`, `first_call_ms`, `plan_ms` and the errors of what cannot be had into the row.
    """
    row["rows"] = point.batch * form.rows_per_request
    steps = [workload.buffers(row["rows"], step) for step in range(point.steps)]
    inputs = live_inputs(workload, point, form)
    calls: dict[str, Call] = {}
    if sglang is not None:
        baselines = Baselines(sglang, steps, workload.table, point.batch)
        calls = _sglang_calls(row, baselines, form, inputs.sglang[0])
    plans = _plans(row, planners, steps, form, inputs.ours[0])
    return PointCalls(row, form, steps, calls, plans, inputs)


def _sglang_calls(row: Row, baselines: Baselines, form: Form, first: LiveSet) -> dict[str, Call]:
    makers: dict[str, Callable[[], Call]]
    if form.mode == "decode":
        makers = {
            "sglang_fused": baselines.fused,
            "sglang_per_step": baselines.per_step,
            "sglang_casts": baselines.casts,
        }
    elif form.mode == "target_verify":
        makers = {"sglang_fused": partial(baselines.verify, form.draft_token_num)}
    else:
        makers = {"sglang_fused": baselines.extend}
    calls = {}
    for name, make in makers.items():
        call = attempt(row["errors"], name, partial(_first_call, row, name, make, first))
        if call is not None:
            calls[name] = call
    return calls


def _plans(row: Row, planners: Planners, steps: list[Tensors], form: Form, first: LiveSet) -> dict[str, ReplayPlan]:
    plans: dict[str, ReplayPlan] = {}
    for name, backend, padding in _PLANS:
        begin = time.perf_counter()
        make = partial(planners.plan, backend, steps, padding=padding, **form.plan_options)
        plan = attempt(row["errors"], name, make)
        if plan is None:
            continue
        row.setdefault("plan_ms", {})[name] = round((time.perf_counter() - begin) * 1e3, 3)
        fallbacks = plan.explain().data["fallbacks"]
        if fallbacks:
            row["errors"][f"{name} plan"] = "; ".join(fallbacks)
            if name == "direct":
                continue  # Its time would be another launcher's.
        run: Callable[[], Any] = partial(getattr, plan, "run")
        if attempt(row["errors"], name, partial(_first_call, row, name, run, first)):
            plans[name] = plan
    return plans


def _first_call(row: Row, name: str, make: Callable[[], Call], args: LiveSet) -> Call:
    """Makes a call and calls it once. The row gets the milliseconds that the first call took."""
    call = make()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(*args)
    row.setdefault("first_call_ms", {})[name] = round((time.perf_counter() - begin) * 1e3, 3)
    torch.cuda.synchronize()
    return call
