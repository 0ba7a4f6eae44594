"""Host memory over a million refreshes with changing inputs. Memory must stay flat, and nothing may compile.

python benches/memory.py --json memory.json
python benches/memory.py --stub --calls 200000      # no GPU: CPU tensors, driver stubbed
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lib.environment import environment
from lib.planners import Planners
from lib.results import emit
from lib.workload import Workload
from qsa_group import FIELDS, ReplayPlan
from qsa_group.launch import DirectBackend, StubDriver

LIMIT_MIB = 1.0
BATCH, STEPS, CONTEXT, LIVE = 64, 2, 32 * 1024, 8 * 1024

Pools = dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]]
"""Long vectors of lengths and slots by dtype, from which live inputs are cut."""


@dataclass
class Calls:
    """What the counted calls took.

    Attributes:
        count: calls.
        seconds: their time.
        resident_mib: host memory before the calls, and after each tenth of them.
    """

    count: int = 0
    seconds: float = 0.0
    resident_mib: list[float] = field(default_factory=list)

    @property
    def grown_mib(self) -> float:
        """Most host memory above that before the calls."""
        return max(self.resident_mib) - self.resident_mib[0]


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def input_pools(device: torch.device) -> Pools:
    """Lengths and slots in both dtypes."""
    generator = torch.Generator().manual_seed(3)
    lens = torch.randint(LIVE // 2, LIVE, (4096,), generator=generator)
    slots = torch.randint(1, BATCH + 1, (4096,), generator=generator)
    return {dtype: (lens.to(device, dtype), slots.to(device, dtype)) for dtype in (torch.int32, torch.int64)}


def refresh(plan: ReplayPlan, pools: Pools, begin: int, count: int) -> None:
    """`count` refreshes, each with new tensor objects and another batch, padding, dtype and alignment."""
    run, dtypes, wait = plan.run, tuple(pools), plan.device.type == "cuda"
    for i in range(begin, begin + count):
        batch = i % BATCH + 1
        first = i * 7 % 4000
        lens, slots = pools[dtypes[i & 1]][0], pools[dtypes[i >> 1 & 1]][1]
        run(lens[first : first + batch], slots[first : first + batch], i % (batch + 1))
        if wait and i % 512 == 0:
            torch.cuda.synchronize()


def count_calls(plan: ReplayPlan, pools: Pools, options: argparse.Namespace) -> Calls:
    """The counted calls, in ten parts."""
    part = max(options.calls // 10, 1)
    calls = Calls(resident_mib=[resident_mib()])
    while calls.count < options.calls and calls.seconds < options.seconds:
        count = min(part, options.calls - calls.count)
        begin = time.perf_counter()
        refresh(plan, pools, calls.count, count)
        if plan.device.type == "cuda":
            torch.cuda.synchronize()
        calls.seconds += time.perf_counter() - begin
        calls.count += count
        calls.resident_mib.append(resident_mib())
    return calls


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The result."""
    on_cpu = options.stub or options.backend == "host"
    workload = Workload(FIELDS, "cpu" if on_cpu else "cuda", max_batch=BATCH, max_steps=STEPS)
    table = workload.set_context(CONTEXT)
    planners = Planners(table, direct=DirectBackend(StubDriver())) if options.stub else Planners(table, options.backend)
    plan = planners.plan(options.backend, [workload.buffers(BATCH, step) for step in range(STEPS)])
    planner = planners.planners[options.backend]
    pools = input_pools(workload.device)
    refresh(plan, pools, 0, options.warm_calls)
    gc.collect()
    before = dict(planner.stats())
    gpu_before = 0 if on_cpu else torch.cuda.memory_allocated()
    calls = count_calls(plan, pools, options)
    after = planner.stats()
    compiles = after["compiles"] - before["compiles"]
    return {
        "bench": "memory",
        "environment": environment(),
        "backend": options.backend + (" (stub)" if options.stub else ""),
        "calls": calls.count,
        "seconds": round(calls.seconds, 2),
        "us_a_call": round(calls.seconds / max(calls.count, 1) * 1e6, 3),
        "resident_mib": [round(value, 3) for value in calls.resident_mib],
        "grown_mib": round(calls.grown_mib, 3),
        "gpu_grown_bytes": 0 if on_cpu else torch.cuda.memory_allocated() - gpu_before,
        "compiles": compiles,
        "runs": after["runs"] - before["runs"],
        "status": int(plan.status()),
        "pass": calls.count >= options.calls and calls.grown_mib <= LIMIT_MIB and compiles == 0,
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the bench. The exit code says only whether the bench ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--warm-calls", type=int, default=50_000)
    parser.add_argument("--backend", default="direct", choices=("direct", "triton", "host"))
    parser.add_argument("--stub", action="store_true", help="CPU tensors, driver stubbed")
    parser.add_argument("--seconds", type=float, default=240, help="stop counting after this long")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE")
    options = parser.parse_args(argv)
    if options.stub and options.backend != "direct":
        parser.error(f"--stub stubs the driver of backend direct, but --backend has value {options.backend}")
    result = measure(options)
    emit(result, options.json)
    if options.json != "-":
        verdict = "pass" if result["pass"] else "FAIL"
        print(
            f"{result['backend']}: {result['calls']:,} calls in {result['seconds']:.1f} s, host memory "
            f"{result['resident_mib'][0]:.1f} MiB, grown by {result['grown_mib']:.3f} MiB (limit {LIMIT_MIB}), "
            f"{result['compiles']} compiles: {verdict}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
