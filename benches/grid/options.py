"""The command line of `launch.py`, and the grid points that it asks for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from lib.workload import MAX_BATCH, MAX_STEPS

__all__ = ["STUB_POINTS", "Point", "arguments", "grid_points"]

BATCHES = (1, 2, 8, 32, 64, 128, 256, 512)
STEPS = (1, 2, 3, 4, 7)
CONTEXTS = ((32, 8), (256, 8), (256, 200), (1024, 8), (1024, 1024))
"""Pairs of (context limit, live length), in units of 1,024 tokens."""


class Point(NamedTuple):
    """A grid point."""

    batch: int
    """Requests."""
    steps: int
    """Draft steps; 1 in the other modes."""
    context: int
    """Tokens of a slot of the request table."""
    live: int
    """Tokens of the longest request."""


STUB_POINTS = tuple(Point(batch, steps, 4096, 1024) for batch, steps in ((64, 2), (1, 2), (64, 7)))
"""The points that are measured without a GPU."""


def grid_points(options: argparse.Namespace) -> list[Point]:
    """The grid's points. Those that count most come first, and a table is built once a context limit."""
    quick = options.grid == "quick"
    batches = options.batch or ((1, 8, 64, 256, 512) if quick else BATCHES)
    steps = options.steps or ((2, 7) if quick else (2, 7, 1, 4, 3))
    contexts = ((256, 8), (1024, 8)) if quick else sorted(CONTEXTS, key=lambda c: (c[0] != 256, c[0], c[1]))
    if options.context:
        contexts = [c for c in CONTEXTS if f"{c[0]}K/{c[1]}K" in options.context]
    if options.mode != "decode":
        steps = (1,)
    return [Point(b, s, c * 1024, live * 1024) for c, live in contexts for s in steps for b in batches]


def arguments(description: str | None, argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", choices=("full", "quick"), default="full")
    parser.add_argument("--quick", action="store_const", const="quick", dest="grid", help="same as --grid quick")
    parser.add_argument("--mode", choices=("decode", "target_verify", "draft_extend"), default="decode")
    parser.add_argument("--stub", action="store_true", help="measure the host path on the CPU, with the driver stubbed")
    parser.add_argument(
        "--against",
        metavar="FOLDER",
        help="compare the host and GPU time of a refresh with the qsa_group that lies in this folder; with --stub, the "
        "host backend of both on the CPU",
    )
    parser.add_argument("--starts", type=int, default=4, help="with --against: how often both processes are started")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="write JSON there, or to standard output")
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--batch", type=int, nargs="+", help="only these batch sizes")
    parser.add_argument("--steps", type=int, nargs="+", help="only these numbers of steps")
    parser.add_argument("--context", nargs="+", metavar="256K/8K", help="only these context limits and live lengths")
    parser.add_argument("--padding", type=int, default=0, help="padding rows of each batch (at most batch - 1)")
    parser.add_argument("--draft-token-num", type=int, default=4, help="rows a request in verify and extend")
    parser.add_argument("--dtype", choices=("int64", "int32"), default="int64", help="of lengths and slots")
    parser.add_argument("--batches", type=int, default=None, help="samples of host time a call")
    parser.add_argument("--seconds", type=float, default=340, help="start no further grid point after this long")
    parser.add_argument("--no-profile", action="store_true", help="do not count launches with the profiler at the end")
    parser.add_argument("--no-check", action="store_true", help="do not compare the values with SGLang's")
    options = parser.parse_args(argv)
    if options.batches is None:
        options.batches = 15 if options.grid == "quick" else 13
    if options.batch and max(options.batch) > MAX_BATCH:
        parser.error(f"a batch is at most {MAX_BATCH}")
    if options.steps and max(options.steps) > MAX_STEPS:
        parser.error(f"at most {MAX_STEPS} steps")
    if options.against and not (Path(options.against) / "qsa_group" / "__init__.py").is_file():
        parser.error(f"--against has value {options.against}, which holds no qsa_group; unpack a wheel there")
    return options
