"""What a refresh costs to launch and to run, against SGLang's released kernels in the same process.

    python benches/launch.py --grid quick --json result.json --plot result.png
    python benches/launch.py --stub --json          # no GPU: the host path on CPU tensors through a driver stub
    python benches/launch.py --quick --against FOLDER   # two versions of this package

Host time is the time to enqueue. GPU time is the time as a node of a CUDA graph. SGLang's kernels come from an
installed SGLang, or from the unpacked wheel or wheel file that QSA_GROUP_SGLANG_PATH names.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grid.options import arguments
from lib.environment import environment
from lib.results import attempt, emit


def main(argv: list[str] | None = None) -> int:
    """Runs the bench. The exit code says only whether the bench ran."""
    options = arguments(__doc__, argv)
    if not options.stub and not torch.cuda.is_available():
        print("no GPU here: use --stub for the host path", file=sys.stderr)
        return 2
    if options.against:
        from grid.against import compare

        compare(options, Path(options.against))
    elif options.stub:
        from grid.stub import measure_stub

        emit(measure_stub(options.grid == "quick"), options.json or "-")
    else:
        _measure(options)
    return 0


def _measure(options: argparse.Namespace) -> None:
    from grid.measure import measure
    from grid.targets import verdicts

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
    finally:  # An interrupted run still writes what it has.
        result["targets"] = verdicts(options.mode, result["rows"])
        emit(result, options.json)
    if options.plot and result["rows"]:
        from plot import draw

        attempt(result["errors"], "plot", partial(draw, result, options.plot))
    _print_closing(result)


def _print_closing(result: dict[str, Any]) -> None:
    from grid.report import closing

    env = result["environment"]
    print(f"{env.get('gpu')}, driver {env.get('driver')}, torch {env['torch']}, triton {env['triton']}, ", end="")
    print(f"Python {env['python']}, SGLang {result.get('sglang')}, {result.get('seconds')} s")
    print(closing(result["mode"], result["rows"]))
    for name, text in result["errors"].items():
        print(f"  {name}: {text}")
    if result["skipped"]:
        print(f"  {len(result['skipped'])} points skipped for time")
    if result.get("profiled_launches"):
        print(f"  launches a round, as profiled: {result['profiled_launches']}")


if __name__ == "__main__":
    raise SystemExit(main())
