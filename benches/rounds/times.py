"""Sections `stall`, `host` and `round`: times of SGLang's calls, with the plugin and without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from lib.timing import no_gc

from .batches import Batch
from .bench import PHASES, WAYS, Bench
from .engine import Engine
from .runners import Runner

__all__ = ["host", "live_batch", "stall", "whole_round"]

_HOST_SIZES = (1, 8, 64, 256)
_UNCOUNTED_CALLS = 50
_UNCOUNTED_ROUNDS = 20


def stall(bench: Bench) -> dict[str, Any]:
    """The first replay of every bucket after capture, and what the capture itself took."""
    bench.fill_table()
    results: dict[str, Any] = {}
    for way in WAYS:
        begin = time.perf_counter()
        engine = bench.captured(way)
        seconds = time.perf_counter() - begin
        first_replays = {runner.phase: _first_replays(bench, runner) for runner in engine.runners}
        worst = {phase: max(times) for phase, times in first_replays.items()}
        results[way] = {"capture_s": round(seconds, 2), "worst_us": worst, "first_replay_us": first_replays}
        print(f"  {way}: capture {seconds:.2f} s, worst first replay {worst} us", flush=True)
        # The next engine is made after this one is gone.
        del engine
    results["buckets"] = list(bench.sizes.buckets)
    return results


def _first_replays(bench: Bench, runner: Runner) -> list[float]:
    times = []
    for size in bench.sizes.buckets:
        view = runner.replay_batch(live_batch(bench, runner, size), size)
        bench.wait()
        start = time.perf_counter_ns()
        runner.backend.init_forward_metadata_out_graph(view)
        times.append(round((time.perf_counter_ns() - start) / 1e3, 1))
        bench.wait()
    return times


def host(bench: Bench) -> dict[str, Any]:
    """Host time of a whole `init_forward_metadata_out_graph`, all ways taking turns, at several batch sizes."""
    bench.fill_table()
    sizes = [size for size in _HOST_SIZES if size in bench.sizes.buckets]
    engines = {way: bench.captured(way, sizes) for way in WAYS}
    results: dict[str, Any] = {}
    for size in sizes:
        for padded in (False, True):
            if padded and size == 1:
                continue
            times = _host_times(bench, engines, size, size - 1 if padded else size)
            name = f"batch {size}{', one row of padding' if padded else ''}"
            results[name] = times
            for phase, ways in times.items():
                base = ways["sglang"]["median"]
                cells = ", ".join(f"{w} {t['median']:.2f} us ({t['median'] / base:.3f})" for w, t in ways.items())
                print(f"  {name:<30}{phase:<8}{cells}", flush=True)
    return results


def _host_times(bench: Bench, engines: dict[str, Engine], size: int, live: int) -> dict[str, Any]:
    calls: dict[str, list[tuple[str, Callable[[Any], None], Any]]] = {}
    for way, engine in engines.items():
        views = [(runner, runner.replay_batch(live_batch(bench, runner, live), size)) for runner in engine.runners]
        calls[way] = [(runner.phase, runner.backend.init_forward_metadata_out_graph, view) for runner, view in views]
    times: dict[str, dict[str, list[int]]] = {phase: {way: [] for way in engines} for phase in (*PHASES, "round")}
    clock = time.perf_counter_ns
    with no_gc():
        for turn in range(-_UNCOUNTED_CALLS, bench.options.samples):
            for way, way_calls in calls.items():
                bench.wait()
                total = 0
                for phase, call, view in way_calls:
                    start = clock()
                    call(view)
                    spent = clock() - start
                    total += spent
                    if turn >= 0:
                        times[phase][way].append(spent)
                if turn >= 0:
                    times["round"][way].append(total)
    return {phase: {way: _summary(samples) for way, samples in ways.items()} for phase, ways in times.items()}


def whole_round(bench: Bench) -> dict[str, Any]:
    """A round's three refreshes with their replays: time until they are enqueued, and until they are done."""
    bench.fill_table()
    size = bench.sizes.max_batch
    engines = {way: bench.captured(way, [size]) for way in WAYS}
    views = {
        way: [(runner, runner.replay_batch(live_batch(bench, runner, size), size)) for runner in engine.runners]
        for way, engine in engines.items()
    }
    enqueued: dict[str, list[int]] = {way: [] for way in WAYS}
    done: dict[str, list[int]] = {way: [] for way in WAYS}
    clock = time.perf_counter_ns
    for turn in range(-_UNCOUNTED_ROUNDS, bench.options.samples // 2):
        for way in WAYS:
            bench.wait()
            start = clock()
            for runner, view in views[way]:
                runner.backend.init_forward_metadata_out_graph(view)
                runner.graphs[size].replay()
            enqueued_at = clock()
            bench.wait()
            done_at = clock()
            if turn >= 0:
                enqueued[way].append(enqueued_at - start)
                done[way].append(done_at - start)
    results = {way: {"enqueued_us": _summary(enqueued[way]), "done_us": _summary(done[way])} for way in WAYS}
    for way, times in results.items():
        print(f"  {way}: enqueued {times['enqueued_us']}, done {times['done_us']} us", flush=True)
    return results


def live_batch(bench: Bench, runner: Runner, size: int) -> Batch:
    """A batch as a runner's phase gets it."""
    return runner.live(bench.batch(size))


def _summary(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Median, 10th and 90th percentile in microseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {
        "median": round(statistics.median(ordered) / 1e3, 3),
        "p10": round(ordered[last // 10] / 1e3, 3),
        "p90": round(ordered[last * 9 // 10] / 1e3, 3),
    }
