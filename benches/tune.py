"""GPU time of a refresh by tiling, to choose the rule `qsa_group.kernel.choose_tiling` from.

    python benches/tune.py --json tune.json
    python benches/tune.py --resources              # no GPU: registers, spills and shared memory of each kernel

A tiling is written lanes/block/wide/warps: page lanes of a row, page entries that a program handles first, page entries
that it handles at a time after those, and warps. `--splits` are lanes over block: the programs of a row's page lanes.

The rule may look at what is known when a plan is made: rows and the page table's width, but not the live tokens. So a
tiling is judged by its regret at the worst live length. The regret is its time over the best tiling's time.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from tuning.kernels import compile_all, resources, variants

SPLITS = (1, 2, 4, 16, 64)
BLOCKS = ((64, 256, 2), (64, 512, 2), (128, 512, 4), (128, 1024, 4), (256, 1024, 8))
"""Triples of block, wide block and warps."""


def numbers(text: str) -> tuple[int, ...]:
    """`256/8` or `256K/8K` as numbers."""
    return tuple(map(int, text.replace("K", "").split("/")))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
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


def print_resources(options: argparse.Namespace) -> None:
    """Prints a line a kernel."""
    for variant in variants(options.mode, options.steps, options.blocks):
        used = resources(variant, options.capability)
        (group,) = variant.groups
        block = f"{group.tiling.block}/{group.tiling.wide}/{group.tiling.num_warps}"
        print(f"{group.mode} steps {group.num_steps} block {block}: {used}")


def sweep(options: argparse.Namespace) -> None:
    """Measures, and prints the regrets."""
    import torch

    from lib.environment import environment
    from lib.results import attempt, emit
    from tuning.measure import measure
    from tuning.regret import regrets

    major, minor = torch.cuda.get_device_capability()
    compile_all(variants(options.mode, options.steps, options.blocks), major * 10 + minor, options.workers)
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
    finally:  # An interrupted sweep still writes what it has.
        emit(result, options.json)
    print("\n".join(regrets(result["points"])))
    for name, text in result["errors"].items():
        print(f"{name}: {text}")
    if result["skipped"]:
        print(f"{len(result['skipped'])} points skipped for time")


def main(argv: list[str] | None = None) -> int:
    """Runs the sweep."""
    options = arguments(argv)
    if options.resources:
        print_resources(options)
    else:
        sweep(options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
