"""``qsa-group replay``: runs recorded rounds again, and checks them."""

from __future__ import annotations

import argparse

from qsa_group.demo.plot import require
from qsa_group.demo.rounds import read_rounds
from qsa_group.demo.runner import RoundRunner

from .options import Commands, add_place, device_of
from .output import check_files
from .serving import add_output, conclude, run_rounds

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Adds the command."""
    replay = commands.add_parser(
        "replay",
        help="run recorded rounds again and check them",
        description="Runs the rounds that 'demo --record FILE' kept, here, and checks every value again.",
    )
    replay.add_argument("file", metavar="FILE", help="recorded rounds")
    add_output(replay)
    add_place(replay)
    replay.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the rounds; returns the exit code."""
    if options.plot is not None:
        require(options.plot)
    check_files(options)
    settings, rounds = read_rounds(options.file)
    runner = RoundRunner(settings, backend=options.backend, device=device_of(options))
    seconds = run_rounds(runner, rounds, options)
    served = {"traffic": f"recorded rounds of {options.file}", "wall_seconds": seconds}
    return conclude(runner, served, options)
