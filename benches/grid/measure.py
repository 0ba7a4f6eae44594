"""The whole grid, point by point."""

from __future__ import annotations

import argparse
import time
from functools import partial
from types import ModuleType
from typing import Any

from lib import bench_core, sglang_kernels
from lib.planners import Planners
from lib.results import attempt, emit
from lib.timing import Call
from lib.triton_kernels import empty_kernel
from lib.workload import Workload
from qsa_group import FIELDS

from .gpu import measure_gpu
from .host import measure_host
from .inputs import Form
from .options import Point, grid_points
from .point import prepare_point
from .ratios import Row, add_ratios
from .report import header, line
from .round import RoundBench
from .values import compare_values

__all__ = ["measure"]


def measure(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Fills `result["rows"]` point by point, so that what was measured survives an interruption."""
    grid = _Grid(options, result)
    begin = time.perf_counter()
    if bench_core.empty_call() is None:
        print(bench_core.MISSING, flush=True)
    print(header(), flush=True)
    for point in grid_points(options):
        if time.perf_counter() - begin > options.seconds:
            result["skipped"].append(list(point))
            continue
        row = grid.measure(point)
        result["rows"].append(row)
        print(line(row), flush=True)
        if options.json not in (None, "-") and len(result["rows"]) % 10 == 0:
            emit(result, options.json, quiet=True)  # A crash costs ten points at most.
    result["seconds"] = round(time.perf_counter() - begin, 1)
    if grid.planners is not None:
        result["stats"] = {name: planner.stats() for name, planner in grid.planners.planners.items()}
    if not options.no_profile:
        # Written first, in case the profiler takes everything down.
        emit(result, None if options.json == "-" else options.json, quiet=True)
        result["profiled_launches"] = grid.rounds.profiled_launches()


class _Grid:
    """Measures grid points one after the other. What they share is made once."""

    def __init__(self, options: argparse.Namespace, result: dict[str, Any]) -> None:
        self.options = options
        self.form = Form.from_options(options)
        self.sglang: ModuleType | None
        self.sglang, result["sglang"] = attempt(result["errors"], "sglang", sglang_kernels.load) or (None, None)
        self.workload = Workload(FIELDS)
        self.empty: Call = empty_kernel()
        self.rounds = RoundBench(self.workload.device)
        self.planners: Planners | None = None

    def measure(self, point: Point) -> Row:
        """The row of a point. An error that ends the point is in the row."""
        row: Row = {"mode": self.form.mode, **point._asdict(), "errors": {}, "ratios": {}}
        begin = time.perf_counter()
        if self.workload.context != point.context or self.planners is None:
            self.planners = Planners(self.workload.set_context(point.context), "direct", "triton")
        attempt(row["errors"], "point", partial(self._fill, point, row, self.planners))
        row["seconds"] = round(time.perf_counter() - begin, 3)
        return row

    def _fill(self, point: Point, row: Row, planners: Planners) -> None:
        calls = prepare_point(point, self.form, row, self.workload, planners, self.sglang)
        errors, batches = row["errors"], self.options.batches
        if not self.options.no_check:
            attempt(errors, "check", partial(compare_values, calls))
        attempt(errors, "host", partial(measure_host, calls, self.empty, batches))
        attempt(errors, "gpu", partial(measure_gpu, calls, self.workload.table, point.live, self.empty))
        attempt(errors, "round", partial(self.rounds.measure, calls, planners, batches))
        add_ratios(row)
