"""Whole speculative rounds on SGLang's own backend classes, with the plugin and without it, in one process.

    python benches/sglang_rounds.py --workload azure_llm_conv.csv --workload azure_llm_code.csv --json rounds.json

Sections, each of which stands alone and is reported even when another one fails:

- stall: the first replay of every bucket after capture, in a fresh Triton cache;
- values: rounds of the traces with bucket padding; every buffer that a graph reads is copied out by the graph itself,
  and compared after each replay;
- launches: kernels that are started outside the graphs, counted with PyTorch's profiler;
- host: time of a whole `init_forward_metadata_out_graph`, and of the three of a round;
- round: a round with its replays, waited for.

The classes are SGLang's, unmodified: the hooked ones, and the same source loaded once more, which nothing hooks. The
graph runners' buffers and calls are those of tests/sglang/sglang_harness.py, whose tests run the real runners.

Where SGLang's dependencies cannot be installed, its wheel and these are enough, each without its own dependencies:
sglang 0.5.23, msgspec, orjson, pybase64, pyzmq, pydantic 2.14.4, pydantic_core 2.50.5, annotated-types, starlette,
fastapi, python-multipart, typing-inspection, traitlets, ipython, loguru, dill, cffi, zstandard, and the wheel of this
package; tests/sglang/standin.py stands in for the compiled rest, and its names are printed.

`--dry-run-cpu` runs the same code without a GPU: the host executor, and stand-ins for the graphs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before Triton is imported: what is compiled here must not come from an earlier run.
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="qsa_group_triton_")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sglang"))

import standin

STOOD_IN = standin.install()

import sglang_harness as harness  # noqa: E402
import torch  # noqa: E402

from qsa_group import sglang as plugin  # noqa: E402
from qsa_group.rounds import Round, RoundSettings  # noqa: E402
from qsa_group.sglang.bridge import ALL_BUFFERS, SHARED_INDEX_BUFFERS, buffer  # noqa: E402
from qsa_group.simulate import Server, ServerOptions  # noqa: E402
from qsa_group.trace import generate, read_workload  # noqa: E402

SECTIONS = ("stall", "values", "launches", "host", "round")
PHASES = ("draft", "verify", "extend")
LANES = ("sglang", "recorded", "direct")


@dataclass
class Options:
    """What to run.

    Attributes:
        device: "cuda", or "cpu" for a dry run.
        steps: draft steps, which are one less than SGLang counts.
        max_batch: the largest bucket.
        context: context limit in tokens.
        workloads: CSV files of traces; none means a generated one.
        rounds: rounds of each trace.
        samples: timed calls behind each median.
        speed: how much faster than real the requests arrive, so that the buckets are full.
        sections: what to run.
    """

    device: str = "cuda"
    steps: int = 2
    max_batch: int = 64
    context: int = 262144
    workloads: list[Path] = field(default_factory=list)
    rounds: int = 2000
    samples: int = 2000
    speed: float = 4.0
    sections: tuple[str, ...] = SECTIONS

    def settings(self) -> RoundSettings:
        """The sizes of the rounds. The lengths of the traces stay far below the context limit."""
        return RoundSettings(steps=self.steps, max_batch=self.max_batch, context=self.context, slots=self.max_batch + 9)


class CudaGraph:
    """A CUDA graph with the calls of the harness's stand-in."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Records what is launched."""
        # Not `torch.cuda.graph`, which collects garbage and empties the cache around each capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.graph.capture_begin()
            try:
                yield
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def copy_out(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Records copies of what the graph reads."""
        for to, source in pairs:
            to.copy_(source)

    def replay(self) -> None:
        """Starts the graph."""
        self.graph.replay()


class Bench:
    """The sizes, the table and the engines of a run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sizes = options.settings()
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"
        self.unpatched = harness.copy_of_module()
        self.table = torch.zeros((self.sizes.slots, self.sizes.table_width), dtype=torch.int32, device=self.device)
        self._pages = self.table.view(self.sizes.slots, self.sizes.max_pages, self.sizes.page_size)
        self._within = torch.arange(self.sizes.page_size, dtype=torch.int32, device=self.device)

    def engine(self, lane: str, *, index_sharing: bool = True, copied: bool = False) -> harness.Engine:
        """An engine of one lane, not captured yet. With `copied` its graphs copy out what they read."""
        if lane != "sglang":
            settings = plugin.Settings(mode=lane, backend="auto" if self.on_gpu else "host")
            if not plugin.install(settings):
                raise RuntimeError("the plugin does not install; see the warning above")
        made = harness.Engine(
            self.unpatched if lane == "sglang" else None,
            steps=self.sizes.steps,
            max_batch=self.sizes.max_batch,
            table=self.table,
            index_sharing=index_sharing,
            context=self.sizes.context,
            graph=CudaGraph if self.on_gpu else harness.Graph,
        )
        if copied:
            for runner in made.runners:
                copy_out(runner, read_names(runner.phase, index_sharing))
        return made

    def captured(self, lane: str, buckets: Sequence[int] | None = None, **options: Any) -> harness.Engine:
        """An engine whose graphs are captured."""
        made = self.engine(lane, **options)
        made.capture(*(buckets or self.sizes.buckets))
        self.wait()
        return made

    def wait(self) -> None:
        """Waits for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def write_pages(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Takes over the pages that a round's requests were given."""
        if entries:
            slots, numbers, ids = torch.tensor(entries, device=self.device).unbind(1)
            self._pages[slots, numbers] = ids.to(torch.int32)[:, None] * self.sizes.page_size + self._within

    def fill_table(self, seed: int = 0) -> None:
        """Random pages everywhere but in slot 0."""
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, 1 << 20, (self.sizes.slots, self.sizes.max_pages), generator=draw, dtype=torch.int32)
        self._pages.copy_((ids[:, :, None].to(self.device) * self.sizes.page_size) + self._within)
        self.table[0] = 0

    def batch(self, size: int, seed: int = 0) -> harness.Batch:
        """A batch of requests of about 8K tokens."""
        draw = random.Random(seed)
        most = min(8192, self.sizes.context - 64)
        return harness.Batch(
            [draw.randint(most // 2, most) for _ in range(size)],
            draw.sample(range(1, self.sizes.slots), size),
            [draw.randint(0, self.sizes.compress_ratio) for _ in range(size)],
        )


def read_names(phase: str, index_sharing: bool) -> tuple[str, ...]:
    """Buffers that a phase's graphs read."""
    return SHARED_INDEX_BUFFERS if phase == "draft" and index_sharing else ALL_BUFFERS


def copy_out(runner: Any, names: Sequence[str]) -> None:
    """Lets a runner's graphs copy what they read into `runner.results`, one mapping a step, shared by all buckets."""
    runner.results = []

    def copies(size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = []
        for step, metadata in enumerate(runner.metadata(size)):
            if len(runner.results) <= step:
                # Buckets are captured largest first.
                runner.results.append({name: torch.zeros_like(buffer(metadata, name)) for name in names})
            for name in names:
                source = buffer(metadata, name)
                pairs.append((runner.results[step][name][: source.shape[0]], source))
        return pairs

    runner.copies = copies


# Values ----------------------------------------------------------------------------------------------------------


def trace_rounds(bench: Bench, path: Path | None, limit: int) -> Iterator[Round]:
    """The first rounds of a serving loop over a trace, again from the start when it is over."""
    seed = 0
    while limit > 0:
        requests = generate(500, seed=seed) if path is None else read_workload(path)
        server = Server(bench.sizes, ServerOptions(speed=bench.options.speed, seed=seed))
        for item in server.serve(requests):
            yield item
            limit -= 1
            if limit == 0:
                return
        seed += 1


def values(bench: Bench) -> dict[str, Any]:
    """Every buffer that a graph reads, with the plugin and without, after each round of each trace."""
    found: dict[str, Any] = {}
    for index_sharing in (True, False):
        for lane in ("recorded", "direct"):
            ours = bench.captured(lane, index_sharing=index_sharing, copied=True)
            theirs = bench.captured("sglang", index_sharing=index_sharing, copied=True)
            for path in bench.options.workloads or [None]:
                rounds = bench.options.rounds if lane == "recorded" else max(bench.options.rounds // 10, 1)
                name = f"{'generated' if path is None else path.stem}, {lane}, index sharing {index_sharing}"
                found[name] = _compare_rounds(bench, ours, theirs, trace_rounds(bench, path, rounds))
                print(f"  {name}: {found[name]}", flush=True)
            del ours, theirs
    return found


def _compare_rounds(
    bench: Bench, ours: harness.Engine, theirs: harness.Engine, rounds: Iterator[Round]
) -> dict[str, Any]:
    before = plugin.stats()
    count, differing, padded, first = 0, 0, 0, ""
    sizes: set[int] = set()
    for item in rounds:
        bench.write_pages(item.pages)
        # SGLang refuses verify windows of more tokens than the compress ratio, which more than two steps would need.
        extend = [min(accepted, bench.sizes.compress_ratio) for accepted in item.extend_lens]
        batch = harness.Batch(item.seq_lens, item.slots, extend)
        for mine, other in zip(ours.runners, theirs.runners, strict=True):
            live = harness.grown(batch) if mine.phase == "extend" else batch
            # What is left undone must be seen.
            for result in mine.results:
                for tensor in result.values():
                    tensor.fill_(-7)
            size = mine.round(live)
            other.round(live)
            sizes.add(size)
            padded += size != len(item.seq_lens)
            words = _difference(bench, mine, other, size)
            if words:
                differing += 1
                first = first or f"round {count}, {mine.phase}, {len(item.seq_lens)} of {size}: {words}"
        count += 1
    after = plugin.stats()
    return {
        "rounds": count,
        "refreshes_differing": differing,
        "first_difference": first,
        "padded_refreshes": padded,
        "buckets": sorted(sizes),
        "recorded": after["recorded"] - before["recorded"],
        "launched": after["launched"] - before["launched"],
        "left_to_sglang": after["sglang"] - before["sglang"],
    }


def _difference(bench: Bench, mine: Any, other: Any, size: int) -> str:
    """The first entry that a graph read and that is not SGLang's; empty where there is none.

    Entries of the page table past a row's length are left out: no reader reads them, and here they are not written. So
    are, off the GPU, the slots of rows behind the batch, to which SGLang's host staging gives the first request's.
    """
    checks = []
    for step, (ours, theirs) in enumerate(zip(mine.results, other.results, strict=True)):
        rows = mine.metadata(size)[0].sequence_lengths.shape[0]
        lengths = theirs["sequence_lengths"][:rows]
        behind = (lengths == 1) & (ours["row_req_pool_indices"][:rows] == 0)
        for name, tensor in ours.items():
            a, b = tensor[:rows], theirs[name][:rows]
            wrong = a != b
            if name == "page_table":
                columns = torch.arange(a.shape[1], device=a.device) * bench.sizes.page_size
                wrong &= columns < lengths[:, None]
            if not bench.on_gpu:
                wrong &= ~(behind if a.ndim == 1 else behind[:, None])
            checks.append((step, name, a, b, wrong, wrong.any()))
    if not bool(torch.stack([check[-1] for check in checks]).any()):
        return ""
    step, name, a, b, wrong, _ = next(check for check in checks if bool(check[-1]))
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return f"step {step}: {name}{list(at)} is {int(a[at])}, SGLang has {int(b[at])}"


# Times -----------------------------------------------------------------------------------------------------------


def summary(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Median, 10th and 90th percentile in microseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {
        "median": round(statistics.median(ordered) / 1e3, 3),
        "p10": round(ordered[last // 10] / 1e3, 3),
        "p90": round(ordered[last * 9 // 10] / 1e3, 3),
    }


def stall(bench: Bench) -> dict[str, Any]:
    """The first replay of every bucket after capture, and what the capture itself took."""
    bench.fill_table()
    found: dict[str, Any] = {}
    for lane in LANES:
        begin = time.perf_counter()
        engine = bench.captured(lane)
        taken = time.perf_counter() - begin
        worst: dict[str, float] = {}
        by_bucket: dict[str, list[float]] = {}
        for runner in engine.runners:
            times = []
            for size in bench.sizes.buckets:
                view = runner.replay_batch(_live(bench, runner, size), size)
                bench.wait()
                start = time.perf_counter_ns()
                runner.backend.init_forward_metadata_out_graph(view)
                times.append(round((time.perf_counter_ns() - start) / 1e3, 1))
                bench.wait()
            by_bucket[runner.phase] = times
            worst[runner.phase] = max(times)
        found[lane] = {"capture_s": round(taken, 2), "worst_us": worst, "first_replay_us": by_bucket}
        print(f"  {lane}: capture {taken:.2f} s, worst first replay {worst} us", flush=True)
        del engine
    found["buckets"] = list(bench.sizes.buckets)
    return found


def _live(bench: Bench, runner: Any, size: int) -> harness.Batch:
    batch = bench.batch(size)
    return harness.grown(batch) if runner.phase == "extend" else batch


def host(bench: Bench) -> dict[str, Any]:
    """Host time of a whole call with and without the plugin, taking turns, at several batch sizes."""
    bench.fill_table()
    sizes = [size for size in (1, 8, 64, 256) if size in bench.sizes.buckets]
    engines = {lane: bench.captured(lane, sizes) for lane in LANES}
    found: dict[str, Any] = {}
    for size in sizes:
        for padded in (False, True):
            if padded and size == 1:
                continue
            times = _host_times(bench, engines, size, size - 1 if padded else size)
            name = f"batch {size}{', one row of padding' if padded else ''}"
            found[name] = times
            for phase, lanes in times.items():
                base = lanes["sglang"]["median"]
                cells = ", ".join(
                    f"{lane} {one['median']:.2f} us ({one['median'] / base:.3f})" for lane, one in lanes.items()
                )
                print(f"  {name:<30}{phase:<8}{cells}", flush=True)
    return found


def _host_times(bench: Bench, engines: dict[str, harness.Engine], size: int, live: int) -> dict[str, Any]:
    calls: dict[str, list[tuple[str, Callable[[Any], None], Any]]] = {}
    for lane, engine in engines.items():
        calls[lane] = []
        for runner in engine.runners:
            view = runner.replay_batch(_live(bench, runner, live), size)
            calls[lane].append((runner.phase, runner.backend.init_forward_metadata_out_graph, view))
    times: dict[str, dict[str, list[int]]] = {phase: {lane: [] for lane in engines} for phase in (*PHASES, "round")}
    clock = time.perf_counter_ns
    gc.collect()
    gc.disable()
    try:
        for turn in range(-50, bench.options.samples):
            for lane, lane_calls in calls.items():
                bench.wait()
                total = 0
                for phase, call, view in lane_calls:
                    start = clock()
                    call(view)
                    spent = clock() - start
                    total += spent
                    if turn >= 0:
                        times[phase][lane].append(spent)
                if turn >= 0:
                    times["round"][lane].append(total)
    finally:
        gc.enable()
    return {phase: {lane: summary(samples) for lane, samples in lanes.items()} for phase, lanes in times.items()}


def whole_round(bench: Bench) -> dict[str, Any]:
    """A round's three refreshes with their replays: time until they are enqueued, and until they are done."""
    bench.fill_table()
    size = bench.sizes.max_batch
    engines = {lane: bench.captured(lane, [size]) for lane in LANES}
    views = {
        lane: [(runner, runner.replay_batch(_live(bench, runner, size), size)) for runner in engine.runners]
        for lane, engine in engines.items()
    }
    times: dict[str, tuple[list[int], list[int]]] = {lane: ([], []) for lane in LANES}
    clock = time.perf_counter_ns
    for turn in range(-20, bench.options.samples // 2):
        for lane in LANES:
            bench.wait()
            start = clock()
            for runner, view in views[lane]:
                runner.backend.init_forward_metadata_out_graph(view)
                runner.graphs[size].replay()
            enqueued = clock()
            bench.wait()
            done = clock()
            if turn >= 0:
                times[lane][0].append(enqueued - start)
                times[lane][1].append(done - start)
    found = {lane: {"enqueued_us": summary(a), "done_us": summary(b)} for lane, (a, b) in times.items()}
    for lane, one in found.items():
        print(f"  {lane}: enqueued {one['enqueued_us']}, done {one['done_us']} us", flush=True)
    return found


# Launches --------------------------------------------------------------------------------------------------------


def launches(bench: Bench) -> dict[str, Any]:
    """Kernels, copies and fills that the device runs for a round's refreshes, without any replay of a graph."""
    bench.fill_table()
    sizes = [size for size in (1, 8, bench.sizes.max_batch) if size in bench.sizes.buckets]
    found: dict[str, Any] = {}
    for lane in LANES:
        engine = bench.captured(lane, sizes)
        found[lane] = {}
        for runner in engine.runners:
            views = [runner.replay_batch(_live(bench, runner, size), size) for size in sizes]
            for view in views:
                runner.backend.init_forward_metadata_out_graph(view)
            bench.wait()
            found[lane][runner.phase] = _per_call(bench, runner, views)
            found[lane][runner.phase]["graph_nodes"] = _graph_nodes(bench, runner, views[-1])
        print(f"  {lane}: {found[lane]} started outside the graphs a refresh", flush=True)
        del engine
    return found


def _per_call(bench: Bench, runner: Any, views: Sequence[Any]) -> dict[str, Any]:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if bench.on_gpu else [ProfilerActivity.CPU]
    turns = 20
    with profile(activities=activities) as recorded:
        for _ in range(turns):
            for view in views:
                runner.backend.init_forward_metadata_out_graph(view)
        bench.wait()
    events = recorded.events() or []
    on_device = [event.name for event in events if event.device_type == DeviceType.CUDA]
    calls = turns * len(views)
    memory = sum(name.startswith(("Memcpy", "Memset")) for name in on_device)
    return {"kernels": (len(on_device) - memory) / calls, "copies": memory / calls}


def _graph_nodes(bench: Bench, runner: Any, view: Any) -> int | str:
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


# -----------------------------------------------------------------------------------------------------------------


def environment(bench: Bench) -> dict[str, Any]:
    """What the figures were measured on."""
    from importlib.metadata import PackageNotFoundError, version

    import triton

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed as a distribution"

    return {
        "gpu": torch.cuda.get_device_name() if bench.on_gpu else "none, dry run on the CPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "sglang": of("sglang"),
        "qsa-group": of("qsa-group"),
        "python": platform.python_version(),
        "stood_in": STOOD_IN,
        "faked_modules": sorted(standin.FAKED),
        "loaded_by": _load_plugin(),
        "steps": bench.sizes.steps,
        "context": bench.sizes.context,
        "buckets": list(bench.sizes.buckets),
    }


def _load_plugin() -> str:
    """Loads the plugin as SGLang's processes do; says whether that put the hooks in."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    method = harness.patched().QwenSparseMultiStepDraftBackend.init_forward_metadata_out_graph
    return "SGLang's load_plugins()" if hasattr(method, "__wrapped__") else "install(), no entry point was found"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=Path, action="append", default=[], help="CSV file of a trace")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of each trace")
    parser.add_argument("--samples", type=int, default=2000, help="timed calls behind each median")
    parser.add_argument("--steps", type=int, default=2, help="draft steps")
    parser.add_argument("--max-batch", type=int, default=64, help="largest bucket")
    parser.add_argument("--context", type=int, default=262144, help="context limit in tokens")
    parser.add_argument("--speed", type=float, default=4.0, help="requests arrive so many times as fast")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="what to run, joined by commas")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--dry-run-cpu", action="store_true", help="no GPU: host executor, stand-ins for graphs")
    given = parser.parse_args()
    options = Options(
        device="cpu" if given.dry_run_cpu else "cuda",
        steps=given.steps,
        max_batch=given.max_batch,
        context=given.context,
        workloads=given.workload,
        rounds=given.rounds,
        samples=given.samples,
        speed=given.speed,
        sections=tuple(given.sections.split(",")),
    )
    bench = Bench(options)
    report: dict[str, Any] = {"environment": environment(bench)}
    print(json.dumps(report["environment"], indent=1), flush=True)
    runs: dict[str, Callable[[Bench], dict[str, Any]]] = {
        "stall": stall,
        "values": values,
        "launches": launches,
        "host": host,
        "round": whole_round,
    }
    failed = []
    for name in options.sections:
        print(f"== {name}", flush=True)
        begin = time.perf_counter()
        try:
            report[name] = runs[name](bench)
        except Exception:
            failed.append(name)
            report[name] = {"error": traceback.format_exc()}
            print(report[name]["error"], flush=True)
        print(f"   {time.perf_counter() - begin:.1f} s", flush=True)
        if given.json:
            given.json.write_text(json.dumps(report, indent=1))
    wrong = sum(one["refreshes_differing"] for one in report.get("values", {}).values() if isinstance(one, dict))
    print(
        f"== {'failed: ' + ', '.join(failed) if failed else 'all sections ran'}; {wrong} refreshes differ", flush=True
    )
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
