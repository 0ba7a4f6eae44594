"""``qsa-group bench``: the host time of a refresh here, grouped against step by step."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import torch

from qsa_group.demo.report import device_name, format_table, place, versions
from qsa_group.demo.rounds import Round, RoundSettings
from qsa_group.demo.runner import RoundRunner
from qsa_group.demo.timeline import measure

from .options import Commands, UsageError, add_layout, add_place, count, device_of, settings_of
from .output import add_json, check_files, say, write_json

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Adds the command."""
    bench = commands.add_parser(
        "bench",
        help="measure the host time of a refresh here, grouped against step by step",
        description="Measures both ways turn by turn in this process, so the ratio holds for this machine and this "
        "run. The largest bucket is raised to the largest --batch.",
    )
    option = bench.add_argument
    option("--batch", type=count, nargs="+", default=[1, 8, 64], metavar="N", help="batch sizes (1 8 64)")
    option("--live", type=count, default=8192, metavar="N", help="live tokens of a request (%(default)s)")
    option("--repeats", type=count, default=500, metavar="N", help="measurements each (%(default)s)")
    add_json(bench)
    add_layout(bench)
    add_place(bench)
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measures; returns the exit code."""
    check_files(options)
    options.max_batch = max(options.max_batch, *options.batch)
    settings = settings_of(options)
    most = settings.context - settings.draft_tokens
    if options.live > most:
        raise UsageError(
            f"--live has value {options.live}, must be at most {most}, --context less {settings.draft_tokens} draft "
            "tokens; lower --live or raise --context"
        )
    runner = RoundRunner(settings, backend=options.backend, device=device_of(options))
    _fill(runner, settings)
    measured, rows = [], []
    for batch in options.batch:
        slots = list(range(1, batch + 1))
        round_ = Round(0.0, [options.live] * batch, slots, [min(2, settings.draft_tokens)] * batch, [])
        line = measure(runner, round_, repeats=options.repeats)
        measured.append(asdict(line))
        cells = [str(batch)]
        for lane in (line.step_by_step, line.grouped):
            cells += [str(lane.launches), f"{lane.total:.2f} ({lane.p10:.2f}-{lane.p90:.2f})"]
        rows.append([*cells, f"{line.grouped.total / line.step_by_step.total:.2f}"])
    say(
        f"host time of one round's refreshes (draft, verify, extend), median (p10-p90) of {options.repeats}\n"
        f"{settings.steps} draft steps, {options.live:,} live tokens a request, context {settings.context:,}\n"
        f"{place(runner)}\n",
        options,
    )
    say(format_table(["batch", "launches", "step by step us", "launches", "grouped us", "ratio"], rows), options)
    result = {
        "versions": versions(),
        "backend": runner.planner.backend,
        "device": device_name(runner.device),
        "settings": asdict(settings),
        "bench": measured,
    }
    write_json(result, options)
    return 0


def _fill(runner: RoundRunner, settings: RoundSettings) -> None:
    """Gives every request all its pages, in random order."""
    pages = torch.cartesian_prod(torch.arange(1, settings.slots), torch.arange(settings.max_pages))
    runner.write_pages(torch.column_stack((pages, torch.randperm(len(pages)))))
