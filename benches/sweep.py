"""Compiles and stalls over batches, paddings, dtypes and alignments, for SGLang's kernels and for ours.

    python benches/sweep.py --json sweep.json
    python benches/sweep.py --modes decode --batches 1 8

Every bucket is planned first, as a graph's capture does. Then each call is timed alone, on an idle device. SGLang's
kernels get the same: their arguments are prepared, and the first call of each bucket has been made. Triton's disk cache
is empty at the start unless --keep-cache is given.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

if __name__ == "__main__" and "--keep-cache" not in sys.argv:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="qsa_group_sweep_")  # Before Triton is imported.

import torch

from lib import sglang_kernels
from lib.counters import CompileCounter
from lib.environment import environment
from lib.planners import Planners
from lib.results import attempt, emit
from lib.timing import no_gc
from lib.workload import Tensors, Workload
from qsa_group import FIELDS

STALL_MS = 1.0
CONTEXT, LIVE = 32 * 1024, 8 * 1024
DTYPES = (torch.int64, torch.int32)

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Lengths, slots and extend lengths."""

Call = Callable[[int, Inputs], None]
"""A refresh of one bucket: takes the padding and the live inputs."""

CallOf = Callable[[int], Call]
"""Plans a bucket of so many requests."""


class Form(NamedTuple):
    """Dtypes and alignment of live inputs."""

    lens: torch.dtype
    slots: torch.dtype
    shift: int
    """Elements from a 16-byte boundary to the first element."""


FORMS = tuple(Form(*form) for form in itertools.product(DTYPES, DTYPES, (0, 1)))


@dataclass(frozen=True)
class Sizes:
    """What the buckets of a mode look like.

    Attributes:
        mode: "decode", "target_verify" or "draft_extend".
        steps: steps of a plan.
        rows: rows of a request.
    """

    mode: str
    steps: int
    rows: int


def variations(batch: int, all_paddings: bool) -> Iterator[tuple[int, Form]]:
    """Padding and form of every call of a bucket."""
    paddings = range(batch + 1) if all_paddings else sorted({0, 1, batch // 2, batch})
    yield from itertools.product(paddings, FORMS)


def inputs_of(batch: int, form: Form, device: torch.device) -> Inputs:
    """Live inputs of a form."""

    def vector(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        memory = torch.zeros(batch + 4, dtype=dtype, device=device)
        memory[form.shift : form.shift + batch].copy_(values)
        return memory[form.shift : form.shift + batch]

    index = torch.arange(batch, device=device)
    return vector(LIVE - index % 61, form.lens), vector(index + 1, form.slots), vector(index % 5, torch.int32)


def sweep(
    batches: Sequence[int], all_paddings: bool, device: torch.device, make: Callable[[], CallOf]
) -> dict[str, Any]:
    """Times every call alone.

    Args:
        batches: batch sizes.
        all_paddings: every padding from 0 to the batch, instead of four.
        device: device of the inputs.
        make: makes what plans the buckets.
    """
    call_of = make()
    calls = {batch: call_of(batch) for batch in batches}
    inputs = {(batch, form): inputs_of(batch, form, device) for batch in batches for form in FORMS}
    times: list[tuple[float, str]] = []
    with CompileCounter() as counter, no_gc():
        for batch in batches:
            for padding, form in variations(batch, all_paddings):
                live = inputs[batch, form]
                torch.cuda.synchronize()
                begin = time.perf_counter()
                calls[batch](padding, live)
                milliseconds = (time.perf_counter() - begin) * 1e3
                name = f"bs {batch} padding {padding} {form.lens} {form.slots} +{form.shift}".replace("torch.", "")
                times.append((milliseconds, name))
        torch.cuda.synchronize()
    return summary(times, counter)


def summary(times: list[tuple[float, str]], counter: CompileCounter) -> dict[str, Any]:
    """The result of one sweep.

    Args:
        times: milliseconds and name of each call, in order.
        counter: what was compiled meanwhile.
    """
    ranked = sorted(times, reverse=True)
    slow = [milliseconds for milliseconds, _ in ranked if milliseconds > STALL_MS]
    return {
        "calls": len(ranked),
        "compiles": counter.total,
        "jit_specialisations": counter.jit,
        "compiled": counter.compiled,
        "loaded": counter.loaded,
        "stalls": len(slow),
        "stalled_ms": round(sum(slow), 1),
        "longest_ms": [round(slow[0], 1), round(slow[-1], 1)] if slow else None,
        "slowest": [f"{name}: {milliseconds:.3f} ms" for milliseconds, name in ranked[:3]],
        "median_us": round(ranked[len(ranked) // 2][0] * 1e3, 2),
        "where": [f"{name}: {milliseconds:.1f} ms" for milliseconds, name in times if milliseconds > STALL_MS][:60],
    }


def ours(sizes: Sizes, workload: Workload, backend: str) -> CallOf:
    """Our calls, planned for each bucket."""
    planners = Planners(workload.table, backend)
    options = {"draft_token_num": sizes.rows} if sizes.mode == "target_verify" else {}

    def call_of(batch: int) -> Call:
        run = planners.plan(backend, buffers(workload, sizes, batch), mode=sizes.mode, **options).run
        if sizes.mode == "draft_extend":
            return lambda padding, live: run(live[0], live[1], padding, live[2])
        return lambda padding, live: run(live[0], live[1], padding)

    return call_of


def theirs(sizes: Sizes, workload: Workload, module: Any) -> CallOf:
    """SGLang's calls, each made once for each bucket with aligned int64 inputs and no padding."""

    def call_of(batch: int) -> Call:
        steps = buffers(workload, sizes, batch)
        baselines = sglang_kernels.Baselines(module, steps, workload.table, batch)
        first = inputs_of(batch, Form(torch.int64, torch.int64, 0), workload.device)
        if sizes.mode == "draft_extend":
            extend = baselines.extend()
            extend(*first, 0)
            return lambda padding, live: extend(*live, padding)
        call = baselines.fused() if sizes.mode == "decode" else baselines.verify(sizes.rows)
        call(first[0], first[1], 0)
        return lambda padding, live: call(live[0], live[1], padding)

    return call_of


def buffers(workload: Workload, sizes: Sizes, batch: int) -> list[Tensors]:
    """Buffers of a bucket's steps."""
    return [workload.buffers(batch * sizes.rows, step) for step in range(sizes.steps)]


def describe(result: dict[str, Any]) -> str:
    """A result in one line."""
    verdict = {True: ": pass", False: ": FAIL", None: ""}[result.get("pass")]
    return (
        f"{result['calls']} calls, {result['compiles']} compiles, {result['loaded']} loads, {result['stalls']} over "
        f"{STALL_MS} ms ({result['stalled_ms']} ms together, {result['longest_ms']}), median {result['median_us']} us, "
        f"slowest {result['slowest'][0]}{verdict}"
    )


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["decode", "target_verify", "draft_extend"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 8, 32, 64, 128])
    parser.add_argument("--steps", type=int, default=2, help="draft steps in decode mode")
    parser.add_argument("--draft-token-num", type=int, default=4)
    parser.add_argument("--backends", nargs="+", default=["direct", "triton"])
    parser.add_argument("--few-paddings", action="store_true", help="0, 1, half and all instead of every padding")
    parser.add_argument("--keep-cache", action="store_true", help="use Triton's disk cache as it is")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs the bench. The exit code says only whether the bench ran."""
    options = arguments(argv)
    result: dict[str, Any] = {"bench": "sweep", "environment": environment(), "options": vars(options), "modes": {}}
    errors: dict[str, str] = result.setdefault("errors", {})
    module, result["sglang"] = attempt(errors, "sglang", sglang_kernels.load) or (None, None)
    workload = Workload(FIELDS, max_batch=max(options.batches))
    workload.set_context(CONTEXT)
    for mode in options.modes:
        sizes = Sizes(mode, options.steps, 1) if mode == "decode" else Sizes(mode, 1, options.draft_token_num)
        results = result["modes"].setdefault(mode, {})
        makers = {backend: partial(ours, sizes, workload, backend) for backend in options.backends}
        if module is not None:
            makers["sglang"] = partial(theirs, sizes, workload, module)
        for name, make in makers.items():
            work = partial(sweep, options.batches, not options.few_paddings, workload.device, make)
            figures = attempt(errors, f"{mode} {name}", work)
            if figures is not None and name != "sglang":
                figures["pass"] = figures["compiles"] == 0 and figures["stalls"] == 0
            results[name] = figures
            text = describe(figures) if figures else errors[f"{mode} {name}"]
            print(f"{mode:<14}{name:<8}{text}", flush=True)
    emit(result, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
