"""The command line: ``qsa-group demo | replay | doctor | explain | bench``.

Exit codes: 0 all is well; 1 a check failed or something is broken; 2 the call itself was wrong.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence

import torch

from qsa_group import __version__, commands
from qsa_group.errors import LaunchError, QsaGroupError
from qsa_group.rounds import RoundSettings
from qsa_group.simulate import ServerOptions
from qsa_group.trace import TRAFFIC

__all__ = ["main"]

_BACKENDS = ("auto", "direct", "triton", "host")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)  # Small tensors only; threads would cost more than they give.
    try:
        code: int = options.command(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except LaunchError as error:
        print(f"qsa-group: {error}", file=sys.stderr)
        return 1
    except (QsaGroupError, OSError, MemoryError, torch.OutOfMemoryError) as error:
        print(f"qsa-group: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qsa-group", description="Grouped refresh of the metadata that replayed QSA graphs read."
    )
    parser.add_argument("--version", action="version", version=f"qsa-group {__version__}")
    choice = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = choice.add_parser(
        "demo",
        help="serve traffic, refresh every round through plans, and check each value",
        description="A serving loop: requests arrive, are admitted, prefilled, drafted, verified, grow page by page and "
        "finish. Draft steps, target verify and draft extend of every round are refreshed through plans on poisoned "
        "buffers and compared with a reference, value for value. Exit code 1 if anything differs.",
    )
    _add_place(demo)
    _add_layout(demo)
    traffic = demo.add_argument_group("traffic")
    traffic.add_argument("--workload", metavar="FILE", help="request trace, CSV: TIMESTAMP,ContextTokens,GeneratedTokens")
    traffic.add_argument(
        "--traffic", choices=sorted(TRAFFIC), default="conversation", help="what to generate without a file (%(default)s)"
    )
    traffic.add_argument("--requests", type=_positive, metavar="N", help=f"serve at most N requests (all of a file, else {commands.GENERATED_REQUESTS})")
    traffic.add_argument("--rounds", type=_positive, metavar="N", help="stop after N rounds")
    traffic.add_argument(
        "--speed", type=_positive_float, metavar="X", help=f"arrivals X times as fast as recorded (1 for a file, else {commands.GENERATED_SPEED:g})"
    )
    traffic.add_argument("--acceptance", type=_share, default=0.7, metavar="P", help="chance that a drafted token is accepted (%(default)s)")
    traffic.add_argument("--pages", type=_positive, metavar="N", help="pages in all (32 a request of the largest batch)")
    traffic.add_argument("--seed", type=int, default=0, metavar="N", help="for traffic, acceptance and page order (%(default)s)")
    _add_output(demo)
    demo.add_argument("--record", metavar="FILE", help="keep the rounds for 'replay' (JSON lines; .gz compresses)")
    demo.set_defaults(command=commands.demo)

    replay = choice.add_parser(
        "replay",
        help="run recorded rounds again and check them",
        description="Runs the rounds that 'demo --record FILE' kept, here, and checks every value again.",
    )
    replay.add_argument("file", metavar="FILE", help="recorded rounds")
    _add_place(replay)
    replay.add_argument("--rounds", type=_positive, metavar="N", help="stop after N rounds")
    _add_output(replay)
    replay.set_defaults(command=commands.replay)

    doctor = choice.add_parser(
        "doctor",
        help="say what would run here, and why nothing better",
        description="Versions, devices, which backend each device gets and why not a better one, and whether SGLang would "
        "load the plugin. Exit code 1 if something that should work does not.",
    )
    doctor.set_defaults(command=commands.doctor)

    explain = choice.add_parser(
        "explain",
        help="say how steps are grouped, and what keeps one out",
        description="Plans the layouts that a JSON file describes (see 'explain --example'), or an example, and says how "
        "they are grouped.",
    )
    explain.add_argument("file", nargs="?", metavar="FILE", help="description of the layouts; without it the example is planned")
    explain.add_argument("--example", action="store_true", help="print the example's description instead of planning it")
    explain.add_argument("--json", action="store_true", help="print the explanation as JSON")
    _add_place(explain)
    explain.set_defaults(command=commands.explain)

    bench = choice.add_parser(
        "bench",
        help="measure the host time of a refresh here, grouped against step by step",
        description="Measures both ways turn by turn in this process, so the ratio holds for this machine and this run.",
    )
    _add_place(bench)
    _add_layout(bench)
    bench.add_argument("--batch", type=_positive, nargs="+", default=[1, 8, 64], metavar="N", help="batch sizes (1 8 64)")
    bench.add_argument("--live", type=_positive, default=8192, metavar="N", help="live tokens a request (%(default)s)")
    bench.add_argument("--repeats", type=_positive, default=500, metavar="N", help="measurements each (%(default)s)")
    bench.add_argument("--json", metavar="FILE", help="write the results as JSON")
    bench.set_defaults(command=commands.bench)
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_argument_group("where")
    place.add_argument("--backend", choices=_BACKENDS, default="auto", help="how to refresh (%(default)s)")
    place.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, … (cuda if there is one, else cpu)")


def _add_layout(parser: argparse.ArgumentParser) -> None:
    plain = RoundSettings()
    layout = parser.add_argument_group("layout")
    layout.add_argument("--steps", type=_positive, default=plain.steps, metavar="N", help="draft steps refreshed together; N + 1 tokens are drafted (%(default)s)")
    layout.add_argument("--max-batch", type=_positive, default=plain.max_batch, metavar="N", help="largest bucket (%(default)s)")
    layout.add_argument("--compress-ratio", type=_positive, default=plain.compress_ratio, metavar="N", help="tokens a compressed group (%(default)s)")
    layout.add_argument("--page-size", type=_positive, default=plain.page_size, metavar="N", help="tokens a page (%(default)s)")
    layout.add_argument("--context", type=_positive, default=plain.context, metavar="N", help="most tokens a request (%(default)s)")
    layout.add_argument("--index-sharing", action="store_true", help="the draft steps read only lengths, slots and positions")


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--plot", metavar="FILE", help="draw a round's calls and the live tokens (.png, .svg, .pdf)")
    output.add_argument("--json", metavar="FILE", help="write the results as JSON")
    output.add_argument("--quiet", action="store_true", help="no progress")




def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return value


def _positive_float(text: str) -> float:
    value = _float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _share(text: str) -> float:
    value = _float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
