"""What the commands of ``cli.py`` do, given their parsed options. Each returns the exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .errors import cannot_write
from .plot import draw, require
from .progress import Progress
from .report import device_name, format_demo, format_table, versions
from .rounds import SETTINGS_LIMITS, Round, RoundSettings, RoundWriter, read_rounds
from .runner import RoundRunner
from .simulate import Server, ServerOptions
from .trace import Request, generate, read_workload
from .usage import STANDARD_OUTPUT, UsageError, check_files, check_most, check_together, option_of

__all__ = ["GENERATED_REQUESTS", "GENERATED_SPEED", "GENERATED_TRAFFIC", "bench", "demo", "doctor", "explain", "replay"]

GENERATED_REQUESTS = 300
GENERATED_SPEED = 4.0
GENERATED_TRAFFIC = "conversation"
_MOST_GENERATED = 1_000_000
_MOST_PAGES_WRITTEN = 1 << 24


def demo(options: argparse.Namespace) -> int:
    """Serves traffic, refreshes and checks every round, and prints the table."""
    if options.workload is not None:
        check_together("--workload", {"--traffic": options.traffic})
    _check_output(options, inputs={"--workload": options.workload}, record=options.record)
    settings = _settings(options)
    requests, traffic, speed = _traffic(options)
    behaviour = ServerOptions(pages=options.pages, acceptance=options.acceptance, speed=speed, seed=options.seed)
    server = Server(settings, behaviour)
    runner = RoundRunner(settings, backend=_backend(options), device=_device(options.device))

    def words(item: Round) -> str:
        done = server.finished + server.refused
        return f"{done:,} of {len(requests):,} requests, {_words(runner, item)}"

    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(RoundWriter(options.record, settings)) if options.record is not None else None
        run = _drive(runner, server.serve(requests), options, words, writer)
    result = _result(runner, traffic, run)
    result["requests"] = {
        "given": len(requests),
        "finished": server.finished,
        "refused": server.refused,
        "clipped": server.clipped,
        "unserved": len(requests) - server.finished - server.refused,
        "generated_tokens": server.generated_tokens,
        "simulated_seconds": server.clock,
    }
    return _conclude(runner, result, run, options)


def replay(options: argparse.Namespace) -> int:
    """Runs recorded rounds again."""
    _check_output(options, inputs={"FILE": options.file})
    settings, rounds = read_rounds(options.file)
    runner = RoundRunner(settings, backend=_backend(options), device=_device(options.device))
    run = _drive(runner, rounds, options, lambda item: _words(runner, item), None)
    if not runner.rounds:
        raise UsageError(f"{options.file} holds no round")
    return _conclude(runner, _result(runner, f"recorded rounds of {options.file}", run), run, options)


def doctor(_: argparse.Namespace) -> int:
    """Says what would run here."""
    from .doctor import diagnose

    found = diagnose()
    _say(found.text())
    return 1 if found.broken else 0


def explain(options: argparse.Namespace) -> int:
    """Says how described steps are grouped."""
    from .explain import EXAMPLE, explain_description, read_description

    if options.example:
        others = {
            "FILE": options.file,
            "--json": options.json,
            "--backend": options.backend,
            "--device": options.device,
        }
        check_together("--example", others)
        _say(json.dumps(EXAMPLE, indent=2))
        return 0
    check_files({"FILE": options.file}, {})
    description = read_description(options.file) if options.file is not None else EXAMPLE
    explanation = explain_description(description, backend=_backend(options), device=str(_device(options.device)))
    _say(json.dumps(explanation.data, indent=2) if options.json else explanation)
    return 0


def bench(options: argparse.Namespace) -> int:
    """Measures grouped against step by step."""
    check_files({}, {"--json": options.json})
    largest = max(options.batch)
    check_most("--batch", largest, SETTINGS_LIMITS["max_batch"])
    if options.max_batch is None:
        options.max_batch = max(RoundSettings.max_batch, largest)
    elif options.max_batch < largest:
        raise UsageError(
            f"--max-batch has value {options.max_batch}, must be at least the largest --batch, {largest}; raise it, or "
            "pass smaller batches"
        )
    settings = _settings(options)
    if options.live + settings.draft_tokens > settings.context:
        raise UsageError(
            f"--live {options.live} and {settings.draft_tokens} draft tokens exceed --context {settings.context}"
        )
    pages = largest * _pages_of(settings, options.live)
    if pages > _MOST_PAGES_WRITTEN:
        raise UsageError(
            f"--batch {largest} with --live {options.live} and --page-size {settings.page_size} has {pages} live "
            f"pages, must have at most {_MOST_PAGES_WRITTEN}; lower --batch or --live, or raise --page-size"
        )
    runner = RoundRunner(settings, backend=_backend(options), device=_device(options.device))
    measured = []
    rows = []
    for batch in options.batch:
        line = runner.timeline(_even_round(settings, batch, options.live), repeats=options.repeats)
        measured.append(asdict(line))
        cells = [
            cell
            for lane in (line.step_by_step, line.grouped)
            for cell in (str(lane.launches), f"{lane.total:.2f} ({lane.p10:.2f}-{lane.p90:.2f})")
        ]
        rows.append([str(batch), *cells, f"{line.grouped.total / line.step_by_step.total:.2f}"])
    _say(
        f"host time of one round's refreshes (draft, verify, extend), median (p10-p90) of {options.repeats}\n"
        f"{settings.steps} draft steps, {options.live:,} live tokens a request, context {settings.context:,}\n"
        f"{_where(runner)}\n",
        options,
    )
    _say(format_table(["batch", "launches", "step by step us", "launches", "grouped us", "ratio"], rows), options)
    _write_json(
        options.json,
        {
            "versions": versions(),
            "backend": runner.planner.backend,
            "device": device_name(runner.device),
            "settings": asdict(settings),
            "bench": measured,
        },
    )
    return 0


class _Run:
    """What a run of rounds leaves for the report.

    Attributes:
        samples: (seconds, live tokens, requests) of each round.
        busiest: the round with the most requests, the last of them.
        wall_seconds: how long it all took.
    """

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, int]] = []
        self.busiest: Round | None = None
        self.wall_seconds = 0.0


def _drive(
    runner: RoundRunner,
    rounds: Iterable[Round],
    options: argparse.Namespace,
    words: Callable[[Round], str],
    writer: RoundWriter | None,
) -> _Run:
    run = _Run()
    progress = Progress(quiet=options.quiet)
    begin = time.perf_counter()
    for item in rounds:
        if writer is not None:
            writer.write(item)
        runner.run(item)
        run.samples.append((item.time, sum(item.seq_lens), len(item.seq_lens)))
        if run.busiest is None or len(item.seq_lens) >= len(run.busiest.seq_lens):
            run.busiest = item
        if progress.due:
            progress.show(words(item))
        if options.rounds is not None and runner.rounds >= options.rounds:
            break
    progress.end()
    runner.finish()
    run.wall_seconds = time.perf_counter() - begin
    return run


def _result(runner: RoundRunner, traffic: str, run: _Run) -> dict[str, Any]:
    return {
        "traffic": traffic,
        "backend": runner.planner.backend,
        "device": device_name(runner.device),
        "versions": versions(),
        "settings": asdict(runner.settings),
        "wall_seconds": run.wall_seconds,
        **runner.summary(),
    }


def _conclude(runner: RoundRunner, result: dict[str, Any], run: _Run, options: argparse.Namespace) -> int:
    """Measures the timeline, prints the table, and writes the files that were asked for."""
    timeline = runner.timeline(run.busiest, seconds=2.0) if run.busiest is not None else None
    result["timeline"] = asdict(timeline) if timeline is not None else None
    _say(format_demo(result), options)
    _write_json(options.json, result)
    if options.plot is not None and timeline is not None:
        draw(options.plot, timeline, run.samples, title=result["traffic"], where=_where(runner))
        _say(f"picture: {options.plot}", options)
    if not result["checked_refreshes"]:
        print("nothing was refreshed, so nothing was checked: see the refused requests", file=sys.stderr)
        return 1
    return 1 if result["mismatches"] else 0


def _settings(options: argparse.Namespace) -> RoundSettings:
    for name, most in SETTINGS_LIMITS.items():
        value = getattr(options, name, None)
        if value is not None:
            check_most(option_of(name), value, most)
    max_batch = RoundSettings.max_batch if options.max_batch is None else options.max_batch
    return RoundSettings(
        steps=options.steps,
        max_batch=max_batch,
        compress_ratio=options.compress_ratio,
        page_size=options.page_size,
        context=options.context,
        slots=max_batch + 1 + max(1, max_batch // 8),
        index_sharing=options.index_sharing,
    )


def _traffic(options: argparse.Namespace) -> tuple[list[Request], str, float]:
    """The requests, what they are in words, and how fast they arrive."""
    if options.workload is not None:
        speed = options.speed or 1.0
        requests = read_workload(options.workload, limit=options.requests)
        name = f"{Path(options.workload).name}, {len(requests):,} requests"
    else:
        speed = options.speed or GENERATED_SPEED
        traffic = options.traffic or GENERATED_TRAFFIC
        count = options.requests or GENERATED_REQUESTS
        if count > _MOST_GENERATED:
            raise UsageError(
                f"--requests has value {count}, must be from 1 to {_MOST_GENERATED} where requests are generated; pass "
                "fewer, or a trace as --workload"
            )
        requests = generate(count, traffic=traffic, seed=options.seed)
        name = f"{len(requests):,} generated requests with the statistics of the {traffic} trace"
    return requests, name + (f", arriving {speed:g} times as fast" if speed != 1.0 else ""), speed


def _pages_of(settings: RoundSettings, live: int) -> int:
    return -(-(live + settings.draft_tokens) // settings.page_size)


def _even_round(settings: RoundSettings, batch: int, live: int) -> Round:
    """A round of equal requests whose pages are scattered."""
    pages = _pages_of(settings, live)
    entries = [
        (slot, number, 1 + number * batch + (slot * 7) % batch)
        for slot in range(1, batch + 1)
        for number in range(pages)
    ]
    return Round(0.0, [live] * batch, list(range(1, batch + 1)), [min(2, settings.draft_tokens)] * batch, entries)


def _backend(options: argparse.Namespace) -> str:
    return options.backend or "auto"


def _device(name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: no such device; use cpu, cuda or cuda:N") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UsageError(f"--device {name}: only cpu and cuda devices are supported")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        raise UsageError(f"--device {name}: torch finds {count} CUDA devices here; see 'qsa-group doctor'")
    return torch.device("cuda", index)


def _where(runner: RoundRunner) -> str:
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"backend {runner.planner.backend}, device {device_name(runner.device)}, {found}"


def _words(runner: RoundRunner, item: Round) -> str:
    return (
        f"round {runner.rounds:,}, batch {len(item.seq_lens)}, {sum(item.seq_lens):,} live tokens, "
        f"{runner.mismatches} mismatches"
    )


def _check_output(options: argparse.Namespace, *, inputs: dict[str, str | None], record: str | None = None) -> None:
    """Finds out before a long run whether its results can be written."""
    check_files(inputs, {"--json": options.json, "--plot": options.plot, "--record": record})
    if options.plot is not None:
        require(options.plot)


def _say(text: object, options: argparse.Namespace | None = None) -> None:
    """Prints to standard output, or to standard error where ``options`` send JSON to standard output."""
    to_errors = options is not None and options.json == STANDARD_OUTPUT
    try:
        print(text, file=sys.stderr if to_errors else sys.stdout, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        if to_errors:  # The results are what was asked for; there is nowhere to say that the report is lost.
            return
        raise UsageError(cannot_write("standard output", error, "send it elsewhere")) from error


def _write_json(path: str | None, value: dict[str, Any]) -> None:
    if path is None:
        return
    text = json.dumps(value, indent=2)
    if path == STANDARD_OUTPUT:
        _say(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(cannot_write(f"--json {path}", error)) from error
