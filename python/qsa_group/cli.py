"""The command line: ``qsa-group demo | replay | doctor | explain | bench``.

Exit codes: 0 all is well; 1 a check failed or something is broken; 2 the call itself was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Sequence
from typing import TextIO, TypeAlias

import torch

from . import __version__, commands
from .errors import LaunchError, QsaGroupError, cannot_write
from .rounds import RoundSettings
from .trace import TRAFFIC
from .usage import option_of

__all__ = ["main"]

_Choice: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_BACKENDS = ("auto", "direct", "triton", "host")
_SIZES = (
    "file",
    "workload",
    "requests",
    "pages",
    "max_batch",
    "batch",
    "live",
    "steps",
    "context",
    "page_size",
    "compress_ratio",
    "repeats",
)
"""Options that decide how much memory a command takes."""
_JSON = "write the results as JSON; - for standard output, and the report then goes to standard error"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    if sys.stderr is None:  # Closed. What is printed to None goes to standard output.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:  # After --help and --version, or for a call that is wrong.
        return _finish(int(ended.code or 0))
    return _finish(_run(options))


def _finish(code: int) -> int:
    """The exit code, once all is written out: at exit a failure would be told as code 120."""
    failure = _flush(sys.stdout)
    if isinstance(failure, BrokenPipeError):
        code = code or 1
    elif failure is not None:
        if code == 0:
            _complain(cannot_write("standard output", failure, "send it elsewhere"))
        code = code or 2
    _flush(sys.stderr)  # There is nowhere to tell of this one.
    return code


def _flush(stream: TextIO | None) -> OSError | None:
    """Writes out a stream; where that fails, sends it to where it cannot fail again, and returns why."""
    if stream is None:
        return None
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _complain(words: object) -> None:
    with contextlib.suppress(OSError):  # The exit code says it too.
        print(f"qsa-group: {words}", file=sys.stderr, flush=True)


def _run(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # Small tensors only; threads would cost more than they give.
    try:
        code: int = options.command(options)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except LaunchError as error:
        _complain(error)
        return 1
    except (QsaGroupError, OSError) as error:
        _complain(error)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _complain(_out_of_memory(options))
        return 2
    return code


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether Python's, the device's or the host's allocator refused; torch has no type of its own for the last."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _out_of_memory(options: argparse.Namespace) -> str:
    """What to lower: none of the allocators' own messages names an option."""
    values = {name: getattr(options, name, None) for name in _SIZES}
    given = [
        f"{option_of(name)} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in values.items()
        if value is not None
    ]
    return "out of memory" + (f" with {', '.join(given)}; lower what is large, or describe less" if given else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qsa-group", description="Grouped refresh of the metadata that replayed QSA graphs read."
    )
    parser.add_argument("--version", action="version", version=f"qsa-group {__version__}")
    choice = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_demo, _add_replay, _add_doctor, _add_explain, _add_bench):
        add(choice)
    return parser


def _add_demo(choice: _Choice) -> None:
    demo = choice.add_parser(
        "demo",
        help="serve traffic, refresh every round through plans, and check each value",
        description="A serving loop: requests arrive, are admitted, prefilled, drafted, verified, grow by pages and "
        "finish. Draft steps, target verify and draft extend of every round are refreshed through plans on poisoned "
        "buffers and compared with a reference, value for value. Exit code 1 if anything differs.",
    )
    _add_place(demo)
    _add_layout(demo)
    traffic = demo.add_argument_group("traffic")
    add = traffic.add_argument
    add("--workload", metavar="FILE", help="request trace, CSV: TIMESTAMP,ContextTokens,GeneratedTokens")
    kinds = sorted(TRAFFIC)
    add("--traffic", choices=kinds, help=f"what to generate without FILE ({commands.GENERATED_TRAFFIC})")
    many = f"serve at most N requests (all of FILE, else {commands.GENERATED_REQUESTS})"
    add("--requests", type=_positive, metavar="N", help=many)
    add("--rounds", type=_positive, metavar="N", help="stop after N rounds")
    fast = f"arrivals X times as fast as the trace's (1 for FILE, else {commands.GENERATED_SPEED:g})"
    add("--speed", type=_positive_float, metavar="X", help=fast)
    accepted = "chance that a drafted token is accepted (%(default)s)"
    add("--acceptance", type=_share, default=0.7, metavar="P", help=accepted)
    add("--pages", type=_positive, metavar="N", help="pages in all (32 a request of the largest batch)")
    add("--seed", type=int, default=0, metavar="N", help="for traffic, acceptance and page order (%(default)s)")
    output = _add_output(demo)
    output.add_argument("--record", metavar="FILE", help="keep the rounds for 'replay' (JSON lines; .gz compresses)")
    demo.set_defaults(command=commands.demo)


def _add_replay(choice: _Choice) -> None:
    replay = choice.add_parser(
        "replay",
        help="run recorded rounds again and check them",
        description="Runs the rounds that 'demo --record FILE' kept, here, and checks every value again.",
    )
    replay.add_argument("file", metavar="FILE", help="recorded rounds")
    replay.add_argument("--rounds", type=_positive, metavar="N", help="stop after N rounds")
    _add_place(replay)
    _add_output(replay)
    replay.set_defaults(command=commands.replay)


def _add_doctor(choice: _Choice) -> None:
    doctor = choice.add_parser(
        "doctor",
        help="say what would run here, and why nothing better",
        description="Versions, devices, which backend each device gets and why not a better one, and whether SGLang "
        "would load the plugin. Exit code 1 if something that should work does not.",
    )
    doctor.set_defaults(command=commands.doctor)


def _add_explain(choice: _Choice) -> None:
    explain = choice.add_parser(
        "explain",
        help="say how steps are grouped, and what keeps one out",
        description="Plans the layouts that a JSON file describes (see 'explain --example'), or an example, and says "
        "how they are grouped.",
    )
    explain.add_argument("file", nargs="?", metavar="FILE", help="description of the layouts (else: the example)")
    explain.add_argument("--example", action="store_true", help="print the example's description; plan nothing")
    explain.add_argument("--json", action="store_true", help="print the explanation as JSON")
    _add_place(explain)
    explain.set_defaults(command=commands.explain)


def _add_bench(choice: _Choice) -> None:
    bench = choice.add_parser(
        "bench",
        help="measure the host time of a refresh here, grouped against step by step",
        description="Measures both ways turn by turn in this process, so the ratio holds for this machine and this "
        "run.",
    )
    _add_place(bench)
    _add_layout(bench, bench=", or the largest of --batch")
    add = bench.add_argument
    add("--batch", type=_positive, nargs="+", default=[1, 8, 64], metavar="N", help="batch sizes (1 8 64)")
    add("--live", type=_positive, default=8192, metavar="N", help="live tokens a request (%(default)s)")
    add("--repeats", type=_repeats, default=500, metavar="N", help="measurements each (%(default)s)")
    add("--json", metavar="FILE", help=_JSON)
    bench.set_defaults(command=commands.bench)


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_argument_group("where")
    place.add_argument("--backend", choices=_BACKENDS, help=f"how to refresh ({_BACKENDS[0]})")
    place.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (cuda if there is one, else cpu)")


def _add_layout(parser: argparse.ArgumentParser, *, bench: str = "") -> None:
    plain = RoundSettings()
    layout = parser.add_argument_group("layout")
    drafted = "draft steps refreshed together; N + 1 tokens are drafted (%(default)s)"
    layout.add_argument("--steps", type=_positive, default=plain.steps, metavar="N", help=drafted)
    batch = f"largest bucket, in requests ({plain.max_batch}{bench})"
    layout.add_argument("--max-batch", type=_positive, metavar="N", help=batch)
    for name, default, words in (
        ("--compress-ratio", plain.compress_ratio, "tokens of a compressed group"),
        ("--page-size", plain.page_size, "tokens of a page"),
        ("--context", plain.context, "most tokens of a request"),
    ):
        layout.add_argument(name, type=_positive, default=default, metavar="N", help=f"{words} (%(default)s)")
    shared = "draft steps read only lengths, request slots and positions; nothing else is in their layout"
    layout.add_argument("--index-sharing", action="store_true", help=shared)


def _add_output(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    output = parser.add_argument_group("output")
    output.add_argument("--plot", metavar="FILE", help="draw a round's calls and the live tokens (.png, .svg, .pdf)")
    output.add_argument("--json", metavar="FILE", help=_JSON)
    output.add_argument("--quiet", action="store_true", help="no progress")
    return output


def _positive(text: str, *, most: int = (1 << 31) - 1) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
    return value


def _repeats(text: str) -> int:
    return _positive(text, most=1_000_000)  # All measurements are kept.


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
