"""The host executor against the same refresh written with torch operators, on CPU tensors, in one process.

python benches/host_torch.py --json host_torch.json

The torch version is what one would write without this package: step by step, no Python loop over rows, into buffers and
scratch that are allocated once, and no more page-table columns than the longest row needs. Both are run on the same
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
from collections.abc import Callable, Sequence
from typing import Any

import torch

from _common import FIELDS, PAGE_SIZE, RATIO, LiveSet, Tensors, Workload, emit, environment, no_gc, summary
from qsa_group import ReplayPlanner, RequestTable, StepBuffers

CONTEXT, LIVE = 256 * 1024, 8 * 1024
POINTS = (  # (batch, steps, case)
    (1, 3, "rounds"),
    (8, 3, "rounds"),
    (64, 1, "rounds"),
    (64, 3, "rounds"),
    (64, 7, "rounds"),
    (256, 3, "rounds"),
    (64, 3, "aligned"),
    (64, 3, "new"),
)
TARGET_POINT, TARGET = (64, 3, "rounds"), 20.0
SPARE_TOKENS = 8  # of a table beyond the context limit: 4 and the draft tokens in SGLang
PAGE_SHIFT = PAGE_SIZE.bit_length() - 1
Refresh = Callable[..., Any]


class TorchRefresh:
    """Decode-mode refresh of several steps with torch operators."""

    def __init__(self, table: torch.Tensor, steps: Sequence[Tensors]) -> None:
        """Makes the views, constants and scratch that a call needs."""
        rows = steps[0]["sequence_lengths"].numel()
        self.steps = steps
        self.slots, self.width = table.shape
        self.entries = table.view(-1)
        self.page_starts = table[:, ::PAGE_SIZE]
        self.back = torch.arange(RATIO - 1, -1, -1)
        self.row = torch.arange(rows)
        self.n, self.r, self.pos, self.rest, self.ring, self.at = torch.empty(6, rows, dtype=torch.int64)
        self.loc = torch.empty(rows, dtype=torch.int32)
        self.group = torch.empty(rows, RATIO, dtype=torch.int64)
        self.one, self.zero = torch.tensor(1), torch.tensor(0)
        self.no_loc = torch.tensor(0, dtype=torch.int32)

    def __call__(self, seq_lens: torch.Tensor, slots: torch.Tensor, num_padding: int = 0) -> None:
        """Refreshes every step. The batch fills the bucket."""
        known = (self.row < self.row.numel() - num_padding) & (slots >= 0) & (slots < self.slots)
        for step, out in enumerate(self.steps):
            self._refresh(out, seq_lens, slots, known, step + 1)

    def _refresh(
        self, out: Tensors, seq_lens: torch.Tensor, slots: torch.Tensor, known: torch.Tensor, offset: int
    ) -> None:
        n, r, pos, rest, ring, at = self.n, self.r, self.pos, self.rest, self.ring, self.at
        torch.add(seq_lens, offset, out=n)
        served = known & (n > 0) & (n <= self.width)
        torch.where(served, n, self.one, out=n)
        torch.where(served, slots, self.zero, out=r)
        torch.sub(n, 1, out=pos)
        torch.remainder(n, RATIO, out=rest)
        torch.mul(r, RATIO, out=ring)

        out["sequence_lengths"].copy_(n)
        out["row_req_pool_indices"].copy_(r)
        out["prefix_lengths"].copy_(pos)
        out["logical_positions"].copy_(pos)
        torch.floor_divide(out["sequence_lengths"], RATIO, out=out["compressed_lengths"])
        torch.remainder(pos, RATIO, out=at)
        torch.add(ring, at, out=out["pending_ring_slots"])

        torch.mul(r, self.width, out=at)
        torch.index_select(self.entries, 0, at.add_(pos), out=self.loc)
        torch.where(rest == 0, self.loc.clamp_(min=0).floor_divide_(RATIO), self.no_loc, out=out["write_locs"])

        torch.sub(pos[:, None], self.back, out=self.group)
        out["ring_group_locs"].copy_(self.group.clamp_(min=0).remainder_(RATIO).add_(ring[:, None]))

        # A shift, since integer division is torch's slowest operator and this is the one large tensor.
        pages = min(int(pos.max()) // PAGE_SIZE + 1, self.page_starts.shape[1])
        found = self.page_starts[:, :pages].index_select(0, r)
        torch.bitwise_right_shift(found.clamp_(min=0), PAGE_SHIFT, out=out["page_table"][:, :pages])


def check_equal(
    ours: Refresh, by_torch: Refresh, mine: Sequence[Tensors], theirs: Sequence[Tensors], live: LiveSet
) -> None:
    """Runs both on the same inputs, and raises where they differ. Page tables count up to the row's last live page."""
    for buffers in (*mine, *theirs):
        for tensor in buffers.values():
            tensor.fill_(-1)
    ours(*live)
    by_torch(*live)
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        pages = a["page_table"].shape[1]
        last = a["logical_positions"].clamp(min=0)[:, None] // PAGE_SIZE
        alive = torch.arange(pages) <= last
        for name in FIELDS:
            same = a[name] == b[name]
            if name == "page_table":
                same |= ~alive
            if not bool(same.all()):
                raise AssertionError(f"step {step}: {name} differs at {(~same).nonzero()[0].tolist()}")


def call_times(variants: dict[str, Refresh], sets: Sequence[LiveSet], seconds: float) -> dict[str, list[float]]:
    """Seconds of single calls, the variants taking turns in blocks, so that a busy machine slows all of them alike."""
    block = 8 * len(sets)
    taken: dict[str, list[float]] = {name: [] for name in variants}
    end = time.perf_counter() + seconds
    with no_gc():
        while time.perf_counter() < end or len(taken[next(iter(taken))]) < 5 * block:
            for name, call in variants.items():
                call(*sets[0])
                for i in range(block):
                    live = sets[i % len(sets)]
                    begin = time.perf_counter_ns()
                    call(*live)
                    taken[name].append((time.perf_counter_ns() - begin) * 1e-9)
    return taken


def live_sets(workload: Workload, batch: int, num_steps: int, case: str) -> list[LiveSet]:
    """The inputs that the calls walk through."""
    sets = workload.live(batch, LIVE, room=num_steps)
    if case == "new":
        return sets
    lens, slots = sets[0]
    return [(lens - 3 * back, slots) for back in reversed(range(len(sets)))]


def engine_table(aligned: torch.Tensor) -> torch.Tensor:
    """The same table, a few tokens wider."""
    wider = aligned.new_zeros(aligned.shape[0], aligned.shape[1] + SPARE_TOKENS)
    wider[:, : aligned.shape[1]] = aligned
    return wider


def measure(
    workload: Workload, entries: torch.Tensor, point: tuple[int, int, str], threads: int, seconds: float
) -> dict[str, Any]:
    """One line of the report."""
    batch, num_steps, case = point
    torch.set_num_threads(threads)
    mine = [workload.buffers(batch, step) for step in range(num_steps)]
    theirs = [workload.buffers(batch, workload.max_steps + step) for step in range(num_steps)]
    table = RequestTable(entries, compress_ratio=RATIO, page_size=PAGE_SIZE)
    plan = ReplayPlanner(table, backend="host").plan([StepBuffers(step + 1, **own) for step, own in enumerate(mine)])
    by_torch = TorchRefresh(entries, theirs)
    sets = live_sets(workload, batch, num_steps, case)
    for live in (*sets, (*sets[0], batch // 2), (sets[0][0] - LIVE, sets[0][1] - 1)):
        check_equal(plan.run, by_torch, mine, theirs, live)
    plan.reset_status()
    taken = call_times({"qsa_group": plan.run, "torch": by_torch}, sets, seconds)
    found = {name: summary(samples, 1e6) for name, samples in taken.items()}
    ratio = found["torch"]["median"] / found["qsa_group"]["median"]
    at = {"batch": batch, "steps": num_steps, "case": case, "threads": threads}
    return {**at, "ratio": round(ratio, 1), "us": found}


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
        at = f"{row['batch']:>5} {row['steps']:>5} {row['case']:>8} {row['threads']:>7}"
        print(f"{at} {ours:>30} {theirs:>32} {row['ratio']:>6.1f}x")


def main(argv: list[str] | None = None) -> int:
    """Runs the bench; the exit code says only whether it ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on each point")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args(argv)

    default_threads = torch.get_num_threads()
    workload = Workload("cpu", max_batch=max(b for b, _, _ in POINTS), max_steps=max(s for _, s, _ in POINTS))
    workload.set_context(CONTEXT)
    wider = engine_table(workload.table)
    rows = [
        measure(workload, workload.table if point[2] == "aligned" else wider, point, threads, options.seconds)
        for threads in dict.fromkeys((1, default_threads))
        for point in POINTS
    ]
    machine = {**environment(), "cpu": cpu_name(), "cpus": os.cpu_count()}
    machine["default_threads"] = default_threads
    print_report(rows, machine)
    least = min(row["ratio"] for row in rows if (row["batch"], row["steps"], row["case"]) == TARGET_POINT)
    met = "met" if least >= TARGET else "missed"
    print(
        f"target at batch {TARGET_POINT[0]}, {TARGET_POINT[1]} steps: at least {TARGET:.0f}x, {met} with {least:.1f}x"
    )
    emit({"environment": machine, "context": CONTEXT, "live": LIVE, "points": rows}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
