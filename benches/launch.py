"""What a refresh costs to launch and to run, against SGLang's released kernels in the same process.

    python benches/launch.py --grid quick --json result.json --plot result.png
    python benches/launch.py --stub --json          # no GPU: the host path on CPU tensors through a driver stub

Host time is the time to enqueue; GPU time is the time as a node of a CUDA graph. SGLang's kernels come from an
installed wheel, or from the unpacked wheel or wheel file that QSA_GROUP_SGLANG_PATH names.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import Any

import torch

from _common import (
    BATCHES,
    CONTEXTS,
    MAX_BATCH,
    STEPS,
    Workload,
    attempt,
    emit,
    environment,
    looped,
    no_gc,
    summary,
)
from _report import closing, header, line, verdicts

Point = tuple[int, int, int, int]  # batch, steps, context, live


def grid(options: argparse.Namespace) -> list[Point]:
    """The grid's points; those that count most come first, and a table is built once a context limit."""
    quick = options.grid == "quick"
    batches = options.batch or ((1, 8, 64, 256, 512) if quick else BATCHES)
    steps = options.steps or ((2, 7) if quick else (2, 7, 1, 4, 3))
    contexts = ((256, 8), (1024, 8)) if quick else sorted(CONTEXTS, key=lambda c: (c[0] != 256, c[0], c[1]))
    if options.context:
        contexts = [c for c in CONTEXTS if f"{c[0]}K/{c[1]}K" in options.context]
    if options.mode != "decode":
        steps = (1,)
    return [(b, s, c * 1024, live * 1024) for c, live in contexts for s in steps for b in batches]


def measure(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Fills ``result["rows"]`` point by point, so that what was measured survives an interruption."""
    import _sglang
    from _launchers import empty_kernel
    from _ours import Planners
    from _point import Bench

    sglang, result["sglang"] = attempt(result["errors"], "sglang", _sglang.load) or (None, None)
    workload = Workload("cuda")
    bench = Bench(options, workload, sglang, empty_kernel())
    begin = time.perf_counter()
    planners: Planners | None = None
    print(header(), flush=True)
    for batch, steps, context, live in grid(options):
        if time.perf_counter() - begin > options.seconds:
            result["skipped"].append([batch, steps, context, live])
            continue
        row: dict[str, Any] = {
            "mode": options.mode,
            "batch": batch,
            "steps": steps,
            "context": context,
            "live": live,
            "errors": {},
            "ratios": {},
        }
        at = time.perf_counter()
        if workload.context != context or planners is None:
            planners = Planners(workload.set_context(context), ("direct", "triton"))
        attempt(row["errors"], "point", partial(bench.measure, planners, row))
        row["seconds"] = round(time.perf_counter() - at, 3)
        result["rows"].append(row)
        print(line(row), flush=True)
        if options.json not in (None, "-") and len(result["rows"]) % 10 == 0:
            emit(result, options.json, quiet=True)  # a crash costs ten points at most
    result["seconds"] = round(time.perf_counter() - begin, 1)
    if planners is not None:
        result["stats"] = {name: planner.stats() for name, planner in planners.planners.items()}
    if not options.no_profile:
        emit(result, None if options.json == "-" else options.json, quiet=True)  # in case the profiler takes all down
        result["profiled_launches"] = bench.profiled_launches()


def stub(options: argparse.Namespace) -> dict[str, Any]:
    """The host path without a GPU: CPU tensors, the driver's calls replaced by a stub that does nothing."""
    from _ours import Planners
    from qsa_group import _core

    batches, calls = (10, 300) if options.grid == "quick" else (41, 2000)
    workload = Workload("cpu", max_batch=64, max_steps=7)
    table = workload.set_context(4096)
    found: dict[str, Any] = {"mode": "stub", "environment": environment(), "unit": "us a call", "points": []}
    for batch, steps in ((64, 2), (1, 2), (64, 7)):
        planners = Planners(table, ("direct",), _driver="stub")
        plan = planners.plan("direct", [workload.buffers(batch, step) for step in range(steps)])
        sets = workload.live(batch, 1024, room=16)
        ours, noop = looped(plan.run, sets), looped(_core.noop, [(*inputs, 0) for inputs in sets])
        samples: dict[str, list[float]] = {"rust_call_us": [], "bare_call_us": []}
        with no_gc():
            for timed in (ours, noop):
                timed(calls)
            for _ in range(batches):
                samples["rust_call_us"].append(ours(calls) / calls)
                samples["bare_call_us"].append(noop(calls) / calls)
        entry: dict[str, Any] = {name: summary(values, 1e6) for name, values in samples.items()}
        found["points"].append({"batch": batch, "steps": steps, **entry})
        planners.clear()
    for name in ("rust_call_us", "bare_call_us"):
        found[name] = found["points"][0][name]["median"]
    return found


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", choices=("full", "quick"), default="full")
    parser.add_argument("--quick", action="store_const", const="quick", dest="grid", help="same as --grid quick")
    parser.add_argument("--mode", choices=("decode", "target_verify", "draft_extend"), default="decode")
    parser.add_argument("--stub", action="store_true", help="measure the host path on the CPU, with the driver stubbed")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write JSON there, or to standard output")
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--batch", type=int, nargs="+", help="only these batch sizes")
    parser.add_argument("--steps", type=int, nargs="+", help="only these numbers of steps")
    parser.add_argument("--context", nargs="+", metavar="256K/8K", help="only these context limits and live lengths")
    parser.add_argument("--padding", type=int, default=0, help="padding rows of each batch (at most batch - 1)")
    parser.add_argument("--draft-token-num", type=int, default=4, help="rows a request in verify and extend")
    parser.add_argument("--dtype", choices=("int64", "int32"), default="int64", help="of lengths and slots")
    parser.add_argument("--batches", type=int, default=None, help="samples of host time a variant")
    parser.add_argument("--seconds", type=float, default=340, help="start no further grid point after this long")
    parser.add_argument("--no-profile", action="store_true", help="do not count launches with the profiler at the end")
    parser.add_argument("--no-check", action="store_true", help="do not compare the values with SGLang's")
    options = parser.parse_args(argv)
    if options.batches is None:
        options.batches = 15 if options.grid == "quick" else 13
    if options.batch and max(options.batch) > MAX_BATCH:
        parser.error(f"a batch is at most {MAX_BATCH}")
    if options.steps and max(options.steps) > max(STEPS):
        parser.error(f"at most {max(STEPS)} steps")
    return options


def main(argv: list[str] | None = None) -> int:
    """Runs the bench; the exit code says only whether it ran."""
    options = arguments(argv)
    if options.stub:
        emit(stub(options), options.json or "-")
        return 0
    if not torch.cuda.is_available():
        print("no GPU here: use --stub for the host path", file=sys.stderr)
        return 2
    result: dict[str, Any] = {
        "bench": "launch",
        "mode": options.mode,
        "grid": options.grid,
        "options": vars(options),
        "environment": environment(),
        "errors": {},
        "skipped": [],
        "rows": [],
    }
    try:
        attempt(result["errors"], "run", partial(measure, options, result))
    finally:  # an interrupted run still writes what it has
        result["targets"] = verdicts(options.mode, result["rows"])
        emit(result, options.json)
    if options.plot and result["rows"]:
        from plot import draw

        attempt(result["errors"], "plot", partial(draw, result, options.plot))
    env = result["environment"]
    print(f"{env.get('gpu')}, driver {env.get('driver')}, torch {env['torch']}, triton {env['triton']}, ", end="")
    print(f"Python {env['python']}, SGLang {result.get('sglang')}, {result.get('seconds')} s")
    print(closing(options.mode, result["rows"]))
    for name, text in result["errors"].items():
        print(f"  {name}: {text}")
    if result["skipped"]:
        print(f"  {len(result['skipped'])} points skipped for time")
    if result.get("profiled_launches"):
        print(f"  launches a round, as profiled: {result['profiled_launches']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
