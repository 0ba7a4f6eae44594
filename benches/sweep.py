"""Compiles and stalls over a sweep of batches, paddings, dtypes and alignments, for SGLang's kernels and for ours.

    python benches/sweep.py --json sweep.json
    python benches/sweep.py --modes decode --batches 1 8

Every bucket is planned first, as a graph's capture does; then each call is timed alone, on an idle device. SGLang's
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
from functools import partial
from typing import Any

if __name__ == "__main__" and "--keep-cache" not in sys.argv:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="qsa_group_sweep_")  # before Triton is imported

import torch

from _common import Workload, attempt, emit, environment, no_gc

STALL_MS = 1.0
CONTEXT, LIVE = 32 * 1024, 8 * 1024
DTYPES = (torch.int64, torch.int32)
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
CallOf = Callable[[int], Callable[..., None]]


def variations(batch: int, all_paddings: bool) -> Iterator[tuple[int, torch.dtype, torch.dtype, int]]:
    """(padding, dtype of lengths, dtype of slots, elements past a 16-byte boundary) of every call of a bucket."""
    paddings = range(batch + 1) if all_paddings else sorted({0, 1, batch // 2, batch})
    yield from itertools.product(paddings, DTYPES, DTYPES, (0, 1))


def inputs_of(batch: int, lens: torch.dtype, slots: torch.dtype, shift: int, device: torch.device) -> Inputs:
    """Live inputs whose first element stands ``shift`` elements past an aligned address."""

    def vector(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        memory = torch.zeros(batch + 4, dtype=dtype, device=device)
        memory[shift : shift + batch].copy_(values)
        return memory[shift : shift + batch]

    place = torch.arange(batch, device=device)
    return vector(LIVE - place % 61, lens), vector(place + 1, slots), vector(place % 5, torch.int32)


def sweep(
    batches: Sequence[int], all_paddings: bool, device: torch.device, make: Callable[[], CallOf]
) -> dict[str, Any]:
    """Times every call alone. ``make()(batch)`` gives ``call(padding, inputs)``, planned beforehand."""
    from _launchers import CompileCounter

    call_of = make()
    calls = {batch: call_of(batch) for batch in batches}
    cached = {
        (batch, lens, slots, shift): inputs_of(batch, lens, slots, shift, device)
        for batch in batches
        for lens, slots, shift in itertools.product(DTYPES, DTYPES, (0, 1))
    }
    times: list[tuple[float, str]] = []
    stalled: list[str] = []
    with CompileCounter() as counter, no_gc():
        for batch in batches:
            for padding, lens, slots, shift in variations(batch, all_paddings):
                inputs = cached[(batch, lens, slots, shift)]
                torch.cuda.synchronize()
                begin = time.perf_counter()
                calls[batch](padding, inputs)
                taken = (time.perf_counter() - begin) * 1e3
                name = f"bs {batch} padding {padding} {lens} {slots} +{shift}".replace("torch.", "")
                times.append((taken, name))
                if taken > STALL_MS:
                    stalled.append(f"{name}: {taken:.1f} ms")
        torch.cuda.synchronize()
    times.sort(reverse=True)
    slow = [taken for taken, _ in times if taken > STALL_MS]
    return {
        "calls": len(times),
        "compiles": counter.total,
        "jit_specialisations": counter.jit,
        "compiled": counter.compiled,
        "loaded": counter.loaded,
        "stalls": len(slow),
        "stalled_ms": round(sum(slow), 1),
        "longest_ms": [round(slow[0], 1), round(slow[-1], 1)] if slow else None,
        "slowest": [f"{name}: {taken:.3f} ms" for taken, name in times[:3]],
        "median_us": round(times[len(times) // 2][0] * 1e3, 2),
        "where": stalled[:60],
    }


def ours(mode: str, workload: Workload, backend: str, steps: int, rows: int) -> CallOf:
    """Our calls, planned for each bucket."""
    from _ours import Planners

    planners = Planners(workload.table, (backend,))
    more = {"draft_token_num": rows} if mode == "target_verify" else {}

    def call_of(batch: int) -> Callable[..., None]:
        run = planners.plan(backend, buffers(workload, batch * rows, steps), mode=mode, **more).run
        if mode == "draft_extend":
            return lambda padding, live: run(live[0], live[1], padding, live[2])
        return lambda padding, live: run(live[0], live[1], padding)

    return call_of


def theirs(mode: str, workload: Workload, module: Any, steps: int, rows: int) -> CallOf:
    """SGLang's calls, each made once for each bucket with aligned int64 inputs and no padding."""
    from _sglang import Baselines

    def call_of(batch: int) -> Callable[..., None]:
        made = Baselines(module, buffers(workload, batch * rows, steps), workload.table, batch)
        first = inputs_of(batch, torch.int64, torch.int64, 0, workload.device)
        if mode == "draft_extend":
            extend = made.extend()
            extend(*first, 0)
            return lambda padding, live: extend(*live, padding)
        call = made.fused() if mode == "decode" else made.verify(rows)
        call(first[0], first[1], 0)
        return lambda padding, live: call(live[0], live[1], padding)

    return call_of


def buffers(workload: Workload, rows: int, steps: int) -> list[dict[str, torch.Tensor]]:
    """Buffers of a bucket's steps."""
    return [workload.buffers(rows, step) for step in range(steps)]


def main(argv: list[str] | None = None) -> int:
    """Runs the bench; the exit code says only whether it ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["decode", "target_verify", "draft_extend"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 8, 32, 64, 128])
    parser.add_argument("--steps", type=int, default=2, help="draft steps in decode mode")
    parser.add_argument("--draft-token-num", type=int, default=4)
    parser.add_argument("--backends", nargs="+", default=["direct", "triton"])
    parser.add_argument("--few-paddings", action="store_true", help="0, 1, half and all instead of every padding")
    parser.add_argument("--keep-cache", action="store_true", help="use Triton's disk cache as it is")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args(argv)
    import _sglang

    result: dict[str, Any] = {"bench": "sweep", "environment": environment(), "options": vars(options), "modes": {}}
    errors: dict[str, str] = result.setdefault("errors", {})
    module, result["sglang"] = attempt(errors, "sglang", _sglang.load) or (None, None)
    workload = Workload("cuda", max_batch=max(options.batches))
    workload.set_context(CONTEXT)
    for mode in options.modes:
        rows = 1 if mode == "decode" else options.draft_token_num
        steps = options.steps if mode == "decode" else 1
        found = result["modes"].setdefault(mode, {})
        makers = {backend: partial(ours, mode, workload, backend, steps, rows) for backend in options.backends}
        if module is not None:
            makers["sglang"] = partial(theirs, mode, workload, module, steps, rows)
        for name, make in makers.items():
            work = partial(sweep, options.batches, not options.few_paddings, workload.device, make)
            got = attempt(errors, f"{mode} {name}", work)
            if got is not None and name != "sglang":
                got["pass"] = got["compiles"] == 0 and got["stalls"] == 0
            found[name] = got
            print(f"{mode:<14}{name:<8}" + (describe(got) if got else errors[f"{mode} {name}"]), flush=True)
    emit(result, options.json)
    return 0


def describe(found: dict[str, Any]) -> str:
    """A result in one line."""
    verdict = {True: ": pass", False: ": FAIL", None: ""}[found.get("pass")]
    return (
        f"{found['calls']} calls, {found['compiles']} compiles, {found['loaded']} loads, {found['stalls']} over "
        f"{STALL_MS} ms ({found['stalled_ms']} ms together, {found['longest_ms']}), median {found['median_us']} us, "
        f"slowest {found['slowest'][0]}{verdict}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
