"""What ``demo`` and ``replay`` share: they run rounds, and tell what came of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from qsa_group.demo.plot import draw
from qsa_group.demo.report import device_name, format_demo, place, versions
from qsa_group.demo.rounds import Round
from qsa_group.demo.runner import RoundRunner
from qsa_group.demo.timeline import measure

from .options import count
from .output import add_json, say, write_json

__all__ = ["add_output", "conclude", "run_rounds"]


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how long to run, and what to write."""
    parser.add_argument("--rounds", type=count, metavar="N", help="stop after N rounds")
    words = "draw a round's calls and the live tokens (.png, .svg, .pdf)"
    parser.add_argument("--plot", metavar="FILE", help=words)
    add_json(parser)


def run_rounds(
    runner: RoundRunner, rounds: Iterable[Round], options: argparse.Namespace, progress: Callable[[], str] = str
) -> float:
    """Refreshes and checks rounds, and shows a line of progress on a terminal.

    Args:
        runner: what refreshes them.
        rounds: the rounds.
        options: --rounds of them at most.
        progress: what the line begins with.

    Returns:
        The seconds that it took.
    """
    begin = shown = time.perf_counter()
    terminal = sys.stderr is not None and sys.stderr.isatty()
    try:
        for round_ in rounds:
            runner.run(round_)
            if terminal and time.perf_counter() > shown + 0.1:
                shown = time.perf_counter()
                line = f"{progress()}round {runner.rounds:,}, batch {len(round_.slots)}, {runner.mismatches} mismatches"
                print(f"{line:78}", end="\r", file=sys.stderr, flush=True)
            if runner.rounds == options.rounds:
                break
    finally:
        if terminal:
            print(f"{'':78}", end="\r", file=sys.stderr, flush=True)
    runner.finish()
    return time.perf_counter() - begin


def conclude(runner: RoundRunner, served: dict[str, Any], options: argparse.Namespace) -> int:
    """Measures the busiest round, prints the table, and writes the files that were asked for.

    Args:
        runner: what refreshed the rounds.
        served: results that the runner does not know: "traffic" in words, "wall_seconds" and more.
        options: --json and --plot.

    Returns:
        The exit code.
    """
    summary = runner.summary()
    timeline = None if runner.busiest is None else measure(runner, runner.busiest, seconds=2.0)
    result = {
        **served,
        "backend": runner.planner.backend,
        "device": device_name(runner.device),
        "versions": versions(),
        "settings": asdict(runner.settings),
        **summary,
        "timeline": None if timeline is None else asdict(timeline),
    }
    say(format_demo(result), options)
    write_json(result, options)
    if timeline is None:
        print("qsa-group: no round ran, so nothing was checked; pass requests that fit --context", file=sys.stderr)
        return 1
    if options.plot is not None:
        draw(options.plot, timeline, runner.samples, title=served["traffic"], where=place(runner))
        say(f"picture: {options.plot}", options)
    return 1 if runner.mismatches else 0
