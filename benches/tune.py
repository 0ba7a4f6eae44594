"""GPU time of a refresh by the kernel's shape, to choose the rule in ``qsa_group.shapes.choose_shape`` from.

    python benches/tune.py --json tune.json
    python benches/tune.py --resources              # no GPU: registers, spills and shared memory of each variant

A shape is lanes over block (programs that a row's page table has), block and wide (page entries that a program handles
first, and at a time after those) and warps. The rule may look at what is known when a graph is planned: rows and the
page table's width, not at what is live. So a shape is judged by its regret, its time over the best shape's time, at the
worst live length.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import re
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from qsa_group.compile import compile_variant
from qsa_group.shapes import Shape, choose_shape
from qsa_group.variants import FIELDS, KernelVariant

SPLITS = (1, 2, 4, 16, 64)
BLOCKS = ((64, 256, 2), (64, 512, 2), (128, 512, 4), (128, 1024, 4), (256, 1024, 8))  # (block, wide, warps)
RATIO, PAGE_SIZE = 4, 64
Cut = tuple[int, int, int, int]


def variants(options: argparse.Namespace) -> list[KernelVariant]:
    """Every kernel that the sweep needs."""
    steps = options.steps if options.mode == "decode" else [1]
    return [
        KernelVariant(options.mode, count, FIELDS, RATIO, PAGE_SIZE, *block)
        for count, block in itertools.product(steps, options.blocks)
    ]


def compile_one(capability: int, variant: KernelVariant) -> float:
    """Compiles one kernel into Triton's disk cache; seconds."""
    begin = time.perf_counter()
    compile_variant(variant, capability)
    return time.perf_counter() - begin


def compile_all(wanted: Sequence[KernelVariant], capability: int, workers: int) -> None:
    """Compiles in parallel processes, so that the sweep itself only loads."""
    begin = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        taken = list(pool.map(partial(compile_one, capability), wanted))
    print(f"{len(taken)} kernels compiled in {time.perf_counter() - begin:.1f} s, the longest {max(taken):.1f} s")


def resources(variant: KernelVariant, capability: int) -> dict[str, int]:
    """Registers, stack, shared and local memory of a kernel, read from its cubin."""
    import triton

    compiled = compile_variant(variant, capability)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told)}
    return {**found, "instructions": compiled.asm["ptx"].count(";"), "cubin": len(compiled.asm["cubin"])}


def measure(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Fills ``result["points"]``: for each grid point, microseconds by shape."""
    from _common import Workload, attempt, gpu_time
    from _launchers import empty_kernel
    from _ours import Planners

    workload = Workload("cuda")
    empty = empty_kernel()
    begin = time.perf_counter()
    per_request = 1 if options.mode == "decode" else options.draft_token_num
    more: dict[str, Any] = {"mode": options.mode}
    if options.mode == "target_verify":
        more["draft_token_num"] = per_request
    steps_wanted = options.steps if options.mode == "decode" else [1]
    for (context, live), steps, batch in itertools.product(options.contexts, steps_wanted, options.batches):
        if time.perf_counter() - begin > options.seconds:
            result["skipped"].append([batch, steps, context, live])
            continue
        table = workload.set_context(context * 1024)
        rows = batch * per_request
        buffers = [workload.buffers(rows, step) for step in range(steps)]
        inputs: list[Any] = workload.live(batch, live * 1024, room=16)
        if options.mode == "draft_extend":
            lens = inputs[0][0].new_full((batch,), per_request - 1)
            inputs = [(s, r, 0, lens) for s, r in inputs]
        shapes: list[Cut] = [(s * block[0], *block) for s in options.splits for block in options.blocks]
        rule = choose_shape(options.mode, steps, rows, context * 1024 // PAGE_SIZE)
        cut = (rule.lanes, rule.block, rule.wide, rule.num_warps)
        if cut not in shapes:
            shapes.append(cut)
        times: dict[Cut, float] = {}
        errors: dict[str, str] = {}

        def timed(shape: Cut, table: Any = table, buffers: Any = buffers, inputs: Any = inputs) -> float:
            planners = Planners(table, ("direct",), _shape=Shape(*shape))
            plan = planners.plan("direct", buffers, padding="slot", **more)
            return gpu_time(plan.run, inputs, copies=20, samples=5)["median"]

        for shape in shapes:
            got = attempt(errors, str(shape), partial(timed, shape))
            if got is not None:
                times[shape] = got
        for shape in sorted(times, key=lambda s: times[s])[:4]:  # the best again, against chance
            again = attempt(errors, str(shape), partial(timed, shape))
            if again is not None:
                times[shape] = min(times[shape], again)
        point = {
            "batch": batch,
            "rows": rows,
            "steps": steps,
            "context": context * 1024,
            "live": live * 1024,
            "empty_us": gpu_time(empty, inputs, copies=20, samples=5)["median"],
            "rule": list(cut),
            "us": {str(list(shape)): round(value, 3) for shape, value in times.items()},
            "errors": errors,
        }
        result["points"].append(point)
        print(describe(point, times), flush=True)


def describe(point: dict[str, Any], times: dict[Cut, float]) -> str:
    """A point in one line: the five best shapes, and the shape of the rule as it stands."""
    ranked = sorted(times.items(), key=lambda pair: pair[1])
    best = "  ".join(f"{'/'.join(map(str, shape))} {value:.2f}" for shape, value in ranked[:5])
    rule = tuple(point["rule"])
    now = f"{times[rule]:.2f} ({times[rule] / ranked[0][1]:.2f}x)" if rule in times and ranked else "not measured"
    failed = f"  {len(point['errors'])} failed: {next(iter(point['errors'].values()))}" if point["errors"] else ""
    return (
        f"bs {point['batch']:<4} steps {point['steps']} {point['context'] // 1024}K/{point['live'] // 1024}K "
        f"empty {point['empty_us']:.2f} | rule {'/'.join(map(str, rule))} {now} | {best}{failed}"
    )


def regrets(points: list[dict[str, Any]]) -> list[str]:
    """For each (steps, rows, context), the shapes with the least regret at their worst live length."""
    groups: dict[tuple[int, int, int], list[dict[str, Any]]] = defaultdict(list)
    for point in points:
        if point["us"]:
            groups[point["steps"], point["rows"], point["context"]].append(point)
    lines = ["regret by what a rule may look at (worst live length):"]
    total: dict[str, list[float]] = defaultdict(list)
    for (steps, rows, context), members in sorted(groups.items()):
        shared = set.intersection(*(set(point["us"]) for point in members))
        worst = {s: max(point["us"][s] / min(point["us"].values()) for point in members) for s in shared}
        for shape, value in worst.items():
            total[shape].append(value)
        best = sorted(worst.items(), key=lambda pair: pair[1])[:6]
        rule = str(members[0]["rule"])
        now = f"{worst[rule]:.3f}" if rule in worst else "-"
        shown = "  ".join(f"{s} {value:.3f}" for s, value in best)
        lines.append(f"  steps {steps} rows {rows:<5} {context // 1024}K: rule {rule} {now} | {shown}")
    whole = {s: math.exp(sum(map(math.log, v)) / len(v)) for s, v in total.items() if len(v) == len(groups)}
    lines.append("over all points, geometric mean and worst:")
    for shape, mean in sorted(whole.items(), key=lambda pair: pair[1])[:10]:
        lines.append(f"  {shape} {mean:.3f} {max(total[shape]):.3f}")
    return lines


def numbers(text: str) -> tuple[int, ...]:
    """``256/8`` as numbers."""
    return tuple(map(int, text.replace("K", "").split("/")))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("decode", "target_verify", "draft_extend"), default="decode")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256, 512])
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 7])
    parser.add_argument(
        "--contexts",
        type=numbers,
        nargs="+",
        metavar="256K/8K",
        default=[(256, 8), (256, 200), (32, 8), (1024, 8), (1024, 1024)],
    )
    parser.add_argument("--splits", type=int, nargs="+", default=list(SPLITS))
    parser.add_argument(
        "--blocks", type=numbers, nargs="+", metavar="128/1024/4", default=list(BLOCKS), help="block/wide/warps"
    )
    parser.add_argument("--draft-token-num", type=int, default=4)
    parser.add_argument("--workers", type=int, default=12, help="processes that compile ahead")
    parser.add_argument("--seconds", type=float, default=120, help="start no further point after this long")
    parser.add_argument("--resources", action="store_true", help="print what each kernel uses; needs no GPU")
    parser.add_argument("--capability", type=int, default=90, help="compute capability for --resources")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs the sweep."""
    options = arguments(argv)
    if options.resources:
        for variant in variants(options):
            used = resources(variant, options.capability)
            shape = f"{variant.block}/{variant.wide}/{variant.num_warps}"
            print(f"{variant.mode} steps {variant.num_steps} block {shape}: {used}")
        return 0
    import torch

    from _common import attempt, emit, environment

    major, minor = torch.cuda.get_device_capability()
    compile_all(variants(options), major * 10 + minor, options.workers)
    result: dict[str, Any] = {
        "bench": "tune",
        "environment": environment(),
        "options": {name: str(value) for name, value in vars(options).items()},
        "points": [],
        "skipped": [],
        "errors": {},
    }
    try:
        attempt(result["errors"], "run", partial(measure, options, result))
    finally:  # an interrupted sweep still writes what it has
        emit(result, options.json)
    print("\n".join(regrets(result["points"])))
    for name, text in result["errors"].items():
        print(f"{name}: {text}")
    if result["skipped"]:
        print(f"{len(result['skipped'])} points skipped for time")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
