"""Host memory over a million refreshes with changing inputs: it must stay flat, and nothing may compile.

python benches/memory.py --json memory.json
python benches/memory.py --stub --calls 200000      # no GPU: CPU tensors, driver stubbed
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from pathlib import Path
from typing import Any

import torch

from _common import Workload, emit, environment
from _ours import Planners

LIMIT_MIB = 1.0
BATCH, STEPS, CONTEXT, LIVE = 64, 2, 32 * 1024, 8 * 1024


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def slices(device: torch.device) -> dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]]:
    """Long vectors of lengths and slots in both dtypes, to cut live inputs from."""
    generator = torch.Generator().manual_seed(3)
    lens = torch.randint(LIVE // 2, LIVE, (4096,), generator=generator)
    slots = torch.randint(1, BATCH + 1, (4096,), generator=generator)
    return {d: (lens.to(device, d), slots.to(device, d)) for d in (torch.int32, torch.int64)}


def refresh(plan: Any, pools: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]], begin: int, count: int) -> None:
    """``count`` refreshes, each with new tensor objects, and another batch, padding, dtype and alignment."""
    run, kinds, wait = plan.run, tuple(pools), plan.device.type == "cuda"
    for i in range(begin, begin + count):
        batch = i % BATCH + 1
        at = i * 7 % 4000
        lens, slots = pools[kinds[i & 1]][0], pools[kinds[i >> 1 & 1]][1]
        run(lens[at : at + batch], slots[at : at + batch], i % (batch + 1))
        if wait and i % 512 == 0:
            torch.cuda.synchronize()


def main(argv: list[str] | None = None) -> int:
    """Runs the bench; the exit code says only whether it ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--warm-calls", type=int, default=50_000)
    parser.add_argument("--backend", default="direct", choices=("direct", "triton", "host"))
    parser.add_argument("--stub", action="store_true", help="CPU tensors, driver stubbed")
    parser.add_argument("--seconds", type=float, default=240, help="stop counting after this long")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args(argv)
    on_cpu = options.stub or options.backend == "host"
    workload = Workload("cpu" if on_cpu else "cuda", max_batch=BATCH, max_steps=STEPS)
    private = {"_driver": "stub"} if options.stub else {}
    planners = Planners(workload.set_context(CONTEXT), (options.backend,), **private)
    plan = planners.plan(options.backend, [workload.buffers(BATCH, step) for step in range(STEPS)])
    pools = slices(workload.device)
    chunk = max(options.calls // 10, 1)
    done, taken, held = 0, 0.0, []
    refresh(plan, pools, 0, options.warm_calls)
    gc.collect()
    before = dict(planners.planners[options.backend].stats())
    gpu_before = 0 if on_cpu else torch.cuda.memory_allocated()
    held.append(resident_mib())
    while done < options.calls and taken < options.seconds:
        count = min(chunk, options.calls - done)
        begin = time.perf_counter()
        refresh(plan, pools, done, count)
        if not on_cpu:
            torch.cuda.synchronize()
        taken += time.perf_counter() - begin
        done += count
        held.append(resident_mib())
    after = planners.planners[options.backend].stats()
    grown = max(held) - held[0]
    result = {
        "bench": "memory",
        "environment": environment(),
        "backend": options.backend + (" (stub)" if options.stub else ""),
        "calls": done,
        "seconds": round(taken, 2),
        "us_a_call": round(taken / max(done, 1) * 1e6, 3),
        "resident_mib": [round(value, 3) for value in held],
        "grown_mib": round(grown, 3),
        "gpu_grown_bytes": 0 if on_cpu else torch.cuda.memory_allocated() - gpu_before,
        "compiles": after["compiles"] - before["compiles"],
        "runs": after["runs"] - before["runs"],
        "status": int(plan.status()),
        "pass": done >= options.calls and grown <= LIMIT_MIB and after["compiles"] == before["compiles"],
    }
    emit(result, options.json)
    if options.json != "-":
        verdict = "pass" if result["pass"] else "FAIL"
        print(
            f"{result['backend']}: {done:,} calls in {taken:.1f} s, host memory {held[0]:.1f} MiB, grown by "
            f"{grown:.3f} MiB (limit {LIMIT_MIB}), {result['compiles']} compiles: {verdict}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
