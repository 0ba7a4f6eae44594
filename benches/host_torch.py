"""The host executor against the same refresh written with torch operators, on CPU tensors, in one process.

python benches/host_torch.py --json host_torch.json

The torch version is what one would write without this package: step by step, no Python loop over rows, into buffers and
scratch that are allocated once, and no more page table columns than the longest row needs. Both are run on the same
inputs and compared before anything is timed.

Cases:
  rounds   a call refreshes the requests of the call before, a few tokens longer, as a serving loop does; the request
           table is a few tokens wider than the context limit, as SGLang allocates it
  aligned  the same over a table of exactly 2^18 tokens a slot, whose page starts compete for a quarter of the cache
  new      each call has other requests, whose part of the table is in no near cache: both wait for memory
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from host.torch_refresh import Refresh, TorchRefresh, check_equal
from lib.environment import environment
from lib.results import emit
from lib.timing import LiveSet, no_gc, summary
from lib.workload import PAGE_SIZE, RATIO, Workload
from qsa_group import FIELDS, ReplayPlanner, RequestTable, StepBuffers

CONTEXT, LIVE = 256 * 1024, 8 * 1024


class Point(NamedTuple):
    """What is measured."""

    batch: int
    steps: int
    case: str


POINTS = (
    Point(1, 3, "rounds"),
    Point(8, 3, "rounds"),
    Point(64, 1, "rounds"),
    Point(64, 3, "rounds"),
    Point(64, 7, "rounds"),
    Point(256, 3, "rounds"),
    Point(64, 3, "aligned"),
    Point(64, 3, "new"),
)
TARGET_POINT, TARGET = Point(64, 3, "rounds"), 20.0
SPARE_TOKENS = 8
"""Tokens of a table beyond the context limit: 4 and the draft tokens in SGLang."""


def call_times(calls: dict[str, Refresh], sets: Sequence[LiveSet], seconds: float) -> dict[str, list[float]]:
    """Seconds of single calls, taking turns in blocks, so that a busy machine slows all of them alike."""
    block = 8 * len(sets)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    with no_gc():
        while time.perf_counter() < end or len(samples[next(iter(samples))]) < 5 * block:
            for name, call in calls.items():
                call(*sets[0])
                for i in range(block):
                    live = sets[i % len(sets)]
                    begin = time.perf_counter_ns()
                    call(*live)
                    samples[name].append((time.perf_counter_ns() - begin) * 1e-9)
    return samples


def live_sets(workload: Workload, point: Point) -> list[LiveSet]:
    """The inputs that the calls walk through."""
    sets = workload.live(point.batch, LIVE, room=point.steps)
    if point.case == "new":
        return sets
    lens, slots = sets[0]
    return [(lens - 3 * back, slots) for back in reversed(range(len(sets)))]


def engine_table(aligned: torch.Tensor) -> torch.Tensor:
    """The same table, a few tokens wider."""
    wider = aligned.new_zeros(aligned.shape[0], aligned.shape[1] + SPARE_TOKENS)
    wider[:, : aligned.shape[1]] = aligned
    return wider


def measure(workload: Workload, entries: torch.Tensor, point: Point, threads: int, seconds: float) -> dict[str, Any]:
    """One line of the report.

    Args:
        workload: the buffers and the live inputs.
        entries: the request table.
        point: what is measured.
        threads: threads of torch.
        seconds: time spent.
    """
    torch.set_num_threads(threads)
    our_steps = [workload.buffers(point.batch, step) for step in range(point.steps)]
    torch_steps = [workload.buffers(point.batch, workload.max_steps + step) for step in range(point.steps)]
    table = RequestTable(entries, compress_ratio=RATIO, page_size=PAGE_SIZE)
    layouts = [StepBuffers(step + 1, **buffers) for step, buffers in enumerate(our_steps)]
    plan = ReplayPlanner(table, backend="host").plan(layouts)
    by_torch = TorchRefresh(entries, torch_steps)
    sets = live_sets(workload, point)
    for live in (*sets, (*sets[0], point.batch // 2), (sets[0][0] - LIVE, sets[0][1] - 1)):
        check_equal(plan.run, by_torch, our_steps, torch_steps, live)
    plan.reset_status()
    samples = call_times({"qsa_group": plan.run, "torch": by_torch}, sets, seconds)
    times = {name: summary(values, 1e6) for name, values in samples.items()}
    ratio = times["torch"]["median"] / times["qsa_group"]["median"]
    return {**point._asdict(), "threads": threads, "ratio": round(ratio, 1), "us": times}


def cpu_name() -> str:
    """The processor's own name, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def print_report(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """The table of all points."""
    print(f"{machine['cpu']}, {machine['cpus']} CPUs, torch {machine['torch']}, qsa_group {machine['qsa_group']}")
    print(f"decode, all nine buffers, context {CONTEXT // 1024}K, about {LIVE // 1024}K live; microseconds a call")
    head = f"{'batch':>5} {'steps':>5} {'case':>8} {'threads':>7}"
    print(f"{head} {'qsa_group median (p10-p90)':>30} {'torch median (p10-p90)':>32} {'ratio':>7}")
    for row in rows:
        ours, theirs = (
            f"{t['median']:.1f} ({t['p10']:.1f}-{t['p90']:.1f})" for t in (row["us"]["qsa_group"], row["us"]["torch"])
        )
        point = f"{row['batch']:>5} {row['steps']:>5} {row['case']:>8} {row['threads']:>7}"
        print(f"{point} {ours:>30} {theirs:>32} {row['ratio']:>6.1f}x")


def main(argv: list[str] | None = None) -> int:
    """Runs the bench. The exit code says only whether the bench ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each point")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args(argv)

    default_threads = torch.get_num_threads()
    max_batch, max_steps = (max(numbers) for numbers in ([p.batch for p in POINTS], [p.steps for p in POINTS]))
    workload = Workload(FIELDS, "cpu", max_batch=max_batch, max_steps=max_steps)
    workload.set_context(CONTEXT)
    wider = engine_table(workload.table)
    rows = [
        measure(workload, workload.table if point.case == "aligned" else wider, point, threads, options.seconds)
        for threads in dict.fromkeys((1, default_threads))
        for point in POINTS
    ]
    machine = {**environment(), "cpu": cpu_name(), "cpus": os.cpu_count()}
    machine["default_threads"] = default_threads
    print_report(rows, machine)
    least = min(row["ratio"] for row in rows if (row["batch"], row["steps"], row["case"]) == TARGET_POINT)
    met = "met" if least >= TARGET else "missed"
    print(
        f"target at batch {TARGET_POINT.batch}, {TARGET_POINT.steps} steps: at least {TARGET:.0f}x, {met} with {least}x"
    )
    emit({"environment": machine, "context": CONTEXT, "live": LIVE, "points": rows}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
