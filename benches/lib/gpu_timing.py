"""GPU time: refreshes as nodes of a CUDA graph, replayed between two events."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from .results import attempt
from .timing import Call, LiveSet, summary

__all__ = ["gpu_samples", "gpu_time", "record"]

_SLOW_S = 5e-4
"""A refresh that takes longer is measured with fewer copies and samples."""


def record(enqueue: Call) -> torch.cuda.CUDAGraph:
    """Captures what `enqueue()` launches. Unlike `torch.cuda.graph` this collects no garbage, which takes long."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            enqueue()
        except BaseException:
            attempt({}, "", graph.capture_end)  # The first error is the one to report.
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def gpu_time(call: Call, sets: Sequence[LiveSet], *, copies: int = 50, samples: int = 7) -> dict[str, float]:
    """Summary of `gpu_samples`."""
    return summary(gpu_samples(call, sets, copies=copies, samples=samples))


def gpu_samples(call: Call, sets: Sequence[LiveSet], *, copies: int = 50, samples: int = 7) -> list[float]:
    """Microseconds of one refresh as a node of a graph that holds nothing but `copies` refreshes in a row.

    Samples of one graph vary less than samples of several graphs of the same refresh, which differ by 1 in 100.
    """
    for args in sets:
        call(*args)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(*sets[0])
    torch.cuda.synchronize()
    if time.perf_counter() - begin > _SLOW_S:
        copies, samples = 10, 5

    def enqueue() -> None:
        for i in range(copies):
            call(*sets[i % len(sets)])

    graph = record(enqueue)
    graph.replay()
    torch.cuda.synchronize()
    times = [_replay_us(graph, 2) / copies for _ in range(samples)]
    graph.reset()
    return times


def _replay_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Microseconds of one replay between two events. The device is kept busy until everything is enqueued."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(400_000)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds * 1000 / replays
