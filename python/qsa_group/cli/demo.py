"""``qsa-group demo``: serves traffic, and refreshes and checks every round."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from qsa_group.demo.plot import require
from qsa_group.demo.rounds import record
from qsa_group.demo.runner import RoundRunner
from qsa_group.demo.simulate import Server
from qsa_group.demo.trace import generate, read_workload

from .options import Commands, add_layout, add_place, count, device_of, settings_of
from .output import check_files
from .serving import add_output, conclude, run_rounds

__all__ = ["add"]

_GENERATED = 300
_GENERATED_SPEED = 4.0


def add(commands: Commands) -> None:
    """Adds the command."""
    demo = commands.add_parser(
        "demo",
        help="serve traffic, refresh every round through plans, and check each value",
        description="A serving loop: requests arrive, are admitted, prefilled, drafted, verified, grow by pages and "
        "finish. Draft steps, target verify and draft extend of every round are refreshed through plans on poisoned "
        "buffers and compared with a reference, value for value. Exit code 1 if anything differs.",
    )
    option = demo.add_argument
    option("--workload", metavar="FILE", help="request trace, CSV: TIMESTAMP,ContextTokens,GeneratedTokens")
    option("--requests", type=count, metavar="N", help=f"serve at most N requests (all of FILE, else {_GENERATED})")
    option("--seed", type=int, default=0, metavar="N", help="for traffic, acceptance and page order (%(default)s)")
    option("--record", metavar="FILE", help="keep the rounds for 'replay' (JSON lines; .gz compresses)")
    add_output(demo)
    add_layout(demo)
    add_place(demo)
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves the traffic; returns the exit code."""
    if options.plot is not None:
        require(options.plot)
    check_files(options)
    settings = settings_of(options)
    speed = 1.0
    if options.workload is not None:
        requests = read_workload(options.workload, limit=options.requests)
        traffic = f"{Path(options.workload).name}, {len(requests):,} requests"
    else:
        speed = _GENERATED_SPEED
        requests = generate(options.requests or _GENERATED, seed=options.seed)
        traffic = (
            f"{len(requests):,} generated requests with the statistics of the conversation trace, "
            f"arriving {speed:g} times as fast"
        )
    server = Server(settings, speed=speed, seed=options.seed)
    runner = RoundRunner(settings, backend=options.backend, device=device_of(options))
    rounds = server.serve(requests)
    if options.record is not None:
        rounds = record(options.record, settings, rounds)

    def progress() -> str:
        return f"{server.finished + server.refused:,} of {len(requests):,} requests, "

    with contextlib.closing(rounds):
        seconds = run_rounds(runner, rounds, options, progress)
    counts = {
        "given": len(requests),
        "finished": server.finished,
        "refused": server.refused,
        "clipped": server.clipped,
        "unserved": len(requests) - server.finished - server.refused,
        "generated_tokens": server.generated_tokens,
        "simulated_seconds": server.clock,
    }
    return conclude(runner, {"traffic": traffic, "wall_seconds": seconds, "requests": counts}, options)
