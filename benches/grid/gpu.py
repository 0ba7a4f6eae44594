"""GPU time of a grid point."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from lib.gpu_timing import gpu_samples, gpu_time
from lib.results import attempt
from lib.timing import Call, LiveSet, summary
from lib.triton_kernels import copy_kernel

from .point import PointCalls

__all__ = ["measure_gpu"]

_SHORT_GRAPHS = 3
"""Graphs of the shortest launches that are measured."""

_COPY_BLOCKS = (64, 128)
"""Pages of a program of the copy kernel. The faster one counts."""

_COPY_LIVE = 8192
"""Tokens up to which the copy kernel is measured."""

Summaries = dict[str, dict[str, float]]


def measure_gpu(point: PointCalls, table: torch.Tensor, live: int, empty: Call) -> None:
    """Fills `gpu_us` of the row.

    Args:
        point: the point.
        table: the request table.
        live: tokens of the longest request.
        empty: starts an empty kernel.
    """
    errors = point.row["errors"]
    calls = dict(point.sglang)
    if point.form.mode == "decode" and live <= _COPY_LIVE:
        page_tables = [buffers["page_table"] for buffers in point.steps]
        calls |= {f"copy_{block}": copy_kernel(table, page_tables, live, block) for block in _COPY_BLOCKS}
    times: Summaries = {}
    for name, call in calls.items():
        time = attempt(errors, f"gpu_{name}", partial(gpu_time, call, point.inputs.sglang))
        if time is not None:
            times[name] = time
    times |= _short(point, empty)
    copies = [times.pop(f"copy_{block}") for block in _COPY_BLOCKS if f"copy_{block}" in times]
    if copies:
        times["copy"] = min(copies, key=lambda time: time["median"])
    point.row["gpu_us"] = times


def _short(point: PointCalls, empty: Call) -> Summaries:
    """An empty kernel and our refresh over several graphs each, taking turns: their ratio is wanted to a hundredth."""
    calls: dict[str, tuple[Call, Sequence[LiveSet]]] = {"empty": (empty, point.inputs.sglang)}
    if "slot" in point.plans:
        calls["ours"] = (point.plans["slot"].run, point.inputs.ours)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_SHORT_GRAPHS):
        for name, (call, inputs) in calls.items():
            samples[name] += attempt(point.row["errors"], f"gpu_{name}", partial(gpu_samples, call, inputs)) or []
    return {name: summary(values) for name, values in samples.items() if values}
