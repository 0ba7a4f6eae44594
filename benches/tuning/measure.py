"""GPU time of a refresh by tiling, at each point of a grid."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lib.gpu_timing import gpu_time
from lib.planners import Planners
from lib.results import attempt
from lib.timing import LiveSet
from lib.triton_kernels import empty_kernel
from lib.workload import PAGE_SIZE, Tensors, Workload
from qsa_group import FIELDS
from qsa_group.kernel import Tiling, choose_tiling
from qsa_group.launch import DirectBackend

__all__ = ["Point", "measure"]

Numbers = tuple[int, int, int, int]
"""Lanes, block, wide block and warps of a tiling."""

Point = dict[str, Any]
"""A grid point of the result."""

_BEST = 4
"""Tilings that are measured again at each point, against chance."""


def measure(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Fills `result["points"]`: for each grid point, microseconds by tiling."""
    sweep = _Sweep(options)
    begin = time.perf_counter()
    steps_wanted = options.steps if options.mode == "decode" else [1]
    for (context, live), steps, batch in itertools.product(options.contexts, steps_wanted, options.batches):
        if time.perf_counter() - begin > options.seconds:
            result["skipped"].append([batch, steps, context, live])
            continue
        point, times = sweep.measure(batch, steps, context * 1024, live * 1024)
        result["points"].append(point)
        print(_describe(point, times), flush=True)


class _Sweep:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.workload = Workload(FIELDS)
        self.empty = empty_kernel()
        self.per_request = 1 if options.mode == "decode" else options.draft_token_num
        self.plan_options: dict[str, Any] = {"mode": options.mode, "padding": "slot"}
        if options.mode == "target_verify":
            self.plan_options["draft_token_num"] = self.per_request

    def measure(self, batch: int, steps: int, context: int, live: int) -> tuple[Point, dict[Numbers, float]]:
        """A point, and microseconds by tiling."""
        self.workload.set_context(context)
        rows = batch * self.per_request
        buffers = [self.workload.buffers(rows, step) for step in range(steps)]
        inputs = self._inputs(batch, live)
        rule = choose_tiling(self.options.mode, steps, rows, context // PAGE_SIZE)
        numbers = (rule.lanes, rule.block, rule.wide, rule.num_warps)
        tilings: list[Numbers] = [(s * block[0], *block) for s in self.options.splits for block in self.options.blocks]
        if numbers not in tilings:
            tilings.append(numbers)
        errors: dict[str, str] = {}
        times = _times(partial(self._time, buffers, inputs), tilings, errors)
        point = {
            "batch": batch,
            "rows": rows,
            "steps": steps,
            "context": context,
            "live": live,
            "empty_us": gpu_time(self.empty, inputs, copies=20, samples=5)["median"],
            "rule": list(numbers),
            "us": {str(list(tiling)): round(value, 3) for tiling, value in times.items()},
            "errors": errors,
        }
        return point, times

    def _inputs(self, batch: int, live: int) -> list[LiveSet]:
        inputs = self.workload.live(batch, live, room=16)
        if self.options.mode != "draft_extend":
            return inputs
        extend_lens = inputs[0][0].new_full((batch,), self.per_request - 1)
        return [(lens, slots, 0, extend_lens) for lens, slots in inputs]

    def _time(self, buffers: list[Tensors], inputs: list[LiveSet], tiling: Numbers) -> float:
        planners = Planners(self.workload.table, direct=DirectBackend(tiling=lambda *_: Tiling(*tiling)))
        plan = planners.plan("direct", buffers, **self.plan_options)
        return gpu_time(plan.run, inputs, copies=20, samples=5)["median"]


def _times(
    time_of: Callable[[Numbers], float], tilings: Sequence[Numbers], errors: dict[str, str]
) -> dict[Numbers, float]:
    times: dict[Numbers, float] = {}
    for tiling in tilings:
        value = attempt(errors, str(tiling), partial(time_of, tiling))
        if value is not None:
            times[tiling] = value
    for tiling in sorted(times, key=lambda t: times[t])[:_BEST]:
        again = attempt(errors, str(tiling), partial(time_of, tiling))
        if again is not None:
            times[tiling] = min(times[tiling], again)
    return times


def _describe(point: Point, times: dict[Numbers, float]) -> str:
    """A point in one line: the five best tilings, and the tiling of the rule as the rule stands."""
    ranked = sorted(times.items(), key=lambda pair: pair[1])
    best = "  ".join(f"{'/'.join(map(str, tiling))} {value:.2f}" for tiling, value in ranked[:5])
    rule = tuple(point["rule"])
    now = f"{times[rule]:.2f} ({times[rule] / ranked[0][1]:.2f}x)" if rule in times and ranked else "not measured"
    failed = f"  {len(point['errors'])} failed: {next(iter(point['errors'].values()))}" if point["errors"] else ""
    return (
        f"bs {point['batch']:<4} steps {point['steps']} {point['context'] // 1024}K/{point['live'] // 1024}K "
        f"empty {point['empty_us']:.2f} | rule {'/'.join(map(str, rule))} {now} | {best}{failed}"
    )
