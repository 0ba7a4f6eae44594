"""Timing, workloads and reports that the benches share. Every result is a ratio within one process."""

from __future__ import annotations

import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

RATIO = 4
PAGE_SIZE = 64
BATCHES = (1, 2, 8, 32, 64, 128, 256, 512)
STEPS = (1, 2, 3, 4, 7)
CONTEXTS = ((32, 8), (256, 8), (256, 200), (1024, 8), (1024, 1024))  # (context, live) in units of 1,024 tokens
MAX_BATCH = max(BATCHES)
QUEUE = 600  # launches that may be under way at once; the driver blocks the caller at about 1,024

FIELDS = (
    "sequence_lengths",
    "row_req_pool_indices",
    "prefix_lengths",
    "compressed_lengths",
    "write_locs",
    "logical_positions",
    "pending_ring_slots",
    "ring_group_locs",
    "page_table",
)
Tensors = dict[str, torch.Tensor]
Call = Callable[..., Any]
LiveSet = tuple[Any, ...]  # positional arguments of one refresh
T = TypeVar("T")


def summary(samples: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Median, 10th and 90th percentile of the samples, each times ``scale``."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    at = [ordered[round(last * q)] for q in (0.1, 0.9)]
    return {
        "median": round(statistics.median(ordered) * scale, 4),
        "p10": round(at[0] * scale, 4),
        "p90": round(at[1] * scale, 4),
        "samples": len(ordered),
    }


@contextmanager
def no_gc() -> Iterator[None]:
    """Keeps the garbage collector out of the measured time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def environment() -> dict[str, Any]:
    """What the numbers were measured on."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "machine": platform.machine(),
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    try:
        import qsa_group

        found["qsa_group"] = getattr(qsa_group, "__version__", None)
    except ImportError:
        found["qsa_group"] = None
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = list(torch.cuda.get_device_capability())
        found["driver"] = _driver_version()
    return found


def _driver_version() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def error_text(error: BaseException) -> str:
    """One line of an error, for a row of the report."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


def attempt(errors: dict[str, str], name: str, work: Callable[[], T]) -> T | None:
    """Does one measurement. If it fails, the error is kept under ``name`` and the bench goes on."""
    try:
        return work()
    except Exception as error:  # whatever it is, the other measurements are worth having
        errors[name] = error_text(error)
        return None


def emit(data: dict[str, Any], target: str | None, *, quiet: bool = False) -> None:
    """Writes the result as JSON to a file, or to standard output for ``-``."""
    if target is None:
        return
    text = json.dumps(data, indent=1)
    if target == "-":
        print(text)
        return
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    if not quiet:
        print(f"wrote {path}", file=sys.stderr)


# Host time -------------------------------------------------------------------------------------------------------


@dataclass
class Variant:
    """A way to refresh. ``timed(n)`` enqueues n refreshes and returns the seconds the host spent on them."""

    name: str
    timed: Callable[[int], float]
    launches: int = 1
    errors: dict[str, str] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    calls: int = 0


def looped(call: Call, sets: Sequence[LiveSet]) -> Callable[[int], float]:
    """Times a plain Python loop over ``call(*inputs)`` that walks through the input sets."""
    cache: dict[int, list[LiveSet]] = {}

    def timed(count: int) -> float:
        inputs = cache.setdefault(count, [sets[i % len(sets)] for i in range(count)])
        begin = time.perf_counter_ns()
        for args in inputs:
            call(*args)
        return (time.perf_counter_ns() - begin) * 1e-9

    return timed


def host_times(
    variants: Sequence[Variant], sync: Call, *, batches: int = 11, budget_s: float = 0.004, drain_s: float = 0.02
) -> None:
    """Fills each variant's ``samples`` with seconds a call, the variants taking turns.

    A batch is as many calls as fit into ``budget_s`` of host and ``drain_s`` of device time, and fewer than fill
    the launch queue. A variant that raises keeps the error and takes no further part.
    """

    def calibrate(variant: Variant) -> bool:
        variant.timed(2)
        sync()
        begin = time.perf_counter()
        host = variant.timed(4) / 4
        sync()
        wall = (time.perf_counter() - begin) / 4
        fits = min(budget_s / max(host, 1e-7), drain_s / max(wall, 1e-7), QUEUE / variant.launches)
        variant.calls = max(4, min(200, int(fits)))
        return True

    def sample(variant: Variant) -> bool:
        sync()
        variant.timed(2)
        sync()
        variant.samples.append(variant.timed(variant.calls) / variant.calls)
        return True

    going = list(variants)
    with no_gc():
        for work in (calibrate, *[sample] * batches):
            going = [v for v in going if attempt(v.errors, v.name, partial(work, v))]
        sync()


# GPU time --------------------------------------------------------------------------------------------------------


def record(enqueue: Call) -> torch.cuda.CUDAGraph:
    """Captures what ``enqueue()`` launches. Unlike ``torch.cuda.graph`` it collects no garbage, which takes long."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            enqueue()
        except BaseException:
            attempt({}, "", graph.capture_end)  # the first error is the one to tell
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def gpu_time(call: Call, sets: Sequence[LiveSet], *, copies: int = 50, samples: int = 7) -> dict[str, float]:
    """Microseconds of one refresh as a node of a graph that holds nothing but ``copies`` of it in a row."""
    return summary(gpu_samples(call, sets, copies=copies, samples=samples))


def gpu_samples(call: Call, sets: Sequence[LiveSet], *, copies: int = 50, samples: int = 7) -> list[float]:
    """As ``gpu_time``, each sample by itself. They vary less than those of another graph of the same: by 1 in 100."""
    for args in sets:
        call(*args)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(*sets[0])
    torch.cuda.synchronize()
    if time.perf_counter() - begin > 5e-4:
        copies, samples = 10, 5

    def enqueue() -> None:
        for i in range(copies):
            call(*sets[i % len(sets)])

    graph = record(enqueue)
    graph.replay()
    torch.cuda.synchronize()
    taken = [_replay_us(graph, 2) / copies for _ in range(samples)]
    graph.reset()
    return taken


def _replay_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Microseconds of one replay between two events, the device kept busy until everything is enqueued."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(400_000)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / replays


# Workload --------------------------------------------------------------------------------------------------------


class Workload:
    """Request table, step buffers and live inputs of any grid point, in memory that the points share."""

    def __init__(self, device: str = "cuda", *, max_batch: int = MAX_BATCH, max_steps: int = max(STEPS)) -> None:
        self.device = torch.device(device)
        self.max_batch = max_batch
        self.max_steps = max_steps
        self.context = 0
        self.table = torch.empty(0, dtype=torch.int32, device=self.device)
        self._memory: dict[tuple[int, str], torch.Tensor] = {}
        self._pool = torch.empty(0, dtype=torch.int32, device=self.device)

    def set_context(self, context: int) -> torch.Tensor:
        """Makes the table of ``max_batch + 1`` slots hold random pages for a context limit. Slot 0 is reserved."""
        if context == self.context:
            return self.table
        slots = self.max_batch + 1
        if self._pool.numel() < slots * context:
            self.table = self._pool = torch.empty(0, dtype=torch.int32, device=self.device)
            self._pool = torch.empty(slots * context, dtype=torch.int32, device=self.device)
        self.table = self._pool[: slots * context].view(slots, context)
        generator = torch.Generator(self.device).manual_seed(context)
        pages = torch.randint(
            1, 1 << 24, (slots, context // PAGE_SIZE), dtype=torch.int32, device=self.device, generator=generator
        )
        offsets = torch.arange(PAGE_SIZE, dtype=torch.int32, device=self.device)
        view = self.table.view(slots, context // PAGE_SIZE, PAGE_SIZE)
        view.copy_(pages[:, :, None] * PAGE_SIZE)
        view.add_(offsets)
        self.table[0].zero_()
        self.context = context
        return self.table

    def buffers(self, rows: int, step: int) -> Tensors:
        """One step's nine buffers, with a page table as wide as the context limit."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(FIELDS, (rows,))
        shapes["ring_group_locs"] = (rows, RATIO)
        shapes["page_table"] = (rows, self.context // PAGE_SIZE)
        return {name: self._take(step, name, shape) for name, shape in shapes.items()}

    def _take(self, step: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        held = self._memory.get((step, name))
        if held is None or held.numel() < count:
            dtype = torch.int64 if name == "pending_ring_slots" else torch.int32
            held = self._memory[(step, name)] = torch.zeros(count, dtype=dtype, device=self.device)
        return held[:count].view(shape)

    def live(
        self, batch: int, live: int, *, room: int, sets: int = 4, dtype: torch.dtype = torch.int64
    ) -> list[LiveSet]:
        """Input sets (seq_lens, req_pool_indices): lengths near ``live``, slots drawn without repetition."""
        generator = torch.Generator().manual_seed(batch * 7919 + live)
        highest = min(live, self.context - room)
        found: list[LiveSet] = []
        for _ in range(sets):
            jitter = torch.randint(0, max(highest // 16, 1), (batch,), generator=generator)
            slots = torch.randperm(self.max_batch, generator=generator)[:batch] + 1
            found.append(((highest - jitter).to(self.device, dtype), slots.to(self.device, dtype)))
        return found
