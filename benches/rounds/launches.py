"""Section `launches`: what the device runs for a round's refreshes, without any replay of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .bench import WAYS, Bench
from .runners import Runner
from .times import live_batch

__all__ = ["launches"]

_TURNS = 20


def launches(bench: Bench) -> dict[str, Any]:
    """Kernels, copies and fills a refresh, by way and phase."""
    bench.fill_table()
    sizes = [size for size in (1, 8, bench.sizes.max_batch) if size in bench.sizes.buckets]
    results: dict[str, Any] = {}
    for way in WAYS:
        engine = bench.captured(way, sizes)
        results[way] = {}
        for runner in engine.runners:
            views = [runner.replay_batch(live_batch(bench, runner, size), size) for size in sizes]
            for view in views:
                runner.backend.init_forward_metadata_out_graph(view)
            bench.wait()
            results[way][runner.phase] = _per_call(bench, runner, views)
            results[way][runner.phase]["graph_nodes"] = _graph_nodes(bench, runner, views[-1])
        print(f"  {way}: {results[way]} started outside the graphs a refresh", flush=True)
        # The next engine is made after this one is gone.
        del engine
    return results


def _per_call(bench: Bench, runner: Runner, views: Sequence[Any]) -> dict[str, Any]:
    """Kernels and copies a call, as PyTorch's profiler counts them."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if bench.on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as recorded:
        for _ in range(_TURNS):
            for view in views:
                runner.backend.init_forward_metadata_out_graph(view)
        bench.wait()
    events = recorded.events() or []
    on_device = [event.name for event in events if event.device_type == DeviceType.CUDA]
    calls = _TURNS * len(views)
    memory = sum(name.startswith(("Memcpy", "Memset")) for name in on_device)
    return {"kernels": (len(on_device) - memory) / calls, "copies": memory / calls}


def _graph_nodes(bench: Bench, runner: Runner, view: Any) -> int | str:
    """Nodes of a graph that holds one refresh and nothing else: a second count, which no profiler can miss."""
    if not bench.on_gpu:
        return "none on the CPU"
    try:
        from cuda.bindings import runtime

        graph = torch.cuda.CUDAGraph(keep_graph=True)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                runner.backend.init_forward_metadata_out_graph(view)
            finally:
                graph.capture_end()
        bench.wait()
        error, _, count = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
        return int(count) if int(error) == 0 else f"cudaGraphGetNodes: {error}"
    except Exception as error:  # The profiler's count is the one that is asked for.
        return f"{type(error).__name__}: {error}"
