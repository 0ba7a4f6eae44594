"""Two versions of the package on one GPU: each in a process of its own, taking turns point by point.

Two processes of the very same version differ by a few parts in a hundred of host time, for as long as they live. The
difference is in the driver's part of a call. So the processes are started anew several times, and each version is the
first in every other start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import qsa_group
from lib.environment import environment
from lib.results import emit
from lib.timing import summary
from lib.workload import MAX_BATCH

from .inputs import Form
from .options import STUB_POINTS, Point, grid_points
from .ratios import Row
from .targets import point_name
from .version import Answer, Ask, Hello, Setup

__all__ = ["compare"]

Answers = dict[Point, dict[str, list[Answer]]]
"""By point and version, an answer a start."""

_BENCHES = Path(__file__).resolve().parents[1]


class Process:
    """The process of one version.

    Args:
        folder: the folder with the package.
        setup: what is measured.

    Raises:
        RuntimeError: the process ended, or took the package from another folder.

    Attributes:
        hello: what is measured there.
    """

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder = folder.resolve()
        inherited = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grid.version"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_BENCHES,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), *inherited])},
        )
        self.hello = Hello(**self._exchange(setup))
        taken_from = Path(self.hello.file).resolve().parents[1]
        if taken_from != self.folder:
            self.close()
            raise RuntimeError(f"{self.folder} has no qsa_group; the process took the one in {taken_from}")

    def measure(self, ask: Ask) -> Answer:
        """One turn at a point."""
        return Answer(**self._exchange(ask))

    def close(self) -> None:
        """Ends the process."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # The process may be gone already.
                stdin.close()
        self._process.wait()

    def _exchange(self, message: Setup | Ask) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):  # The answer is missing then.
            stdin.write(json.dumps(asdict(message)) + "\n")
            stdin.flush()
        answer = stdout.readline()
        if not answer:
            self.close()
            raise RuntimeError(f"the process with {self.folder} ended with code {self._process.returncode}")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded


def compare(options: argparse.Namespace, other: Path) -> dict[str, Any]:
    """Measures both versions over the grid, and prints the ratios ours / other.

    Args:
        options: the command line.
        other: the folder with the other version.

    Returns:
        The result. Each row has the times of both versions and the ratios of their medians.
    """
    form = Form.from_options(options)
    device, backend = ("cpu", "host") if options.stub else ("cuda", "direct")
    max_batch = max(point.batch for point in STUB_POINTS) if options.stub else MAX_BATCH
    setup = Setup(list(qsa_group.FIELDS), device, backend, asdict(form), max_batch)
    result: dict[str, Any] = {
        "bench": "launch against",
        "mode": form.mode,
        "options": vars(options),
        "environment": environment(),
        "skipped": [],
        "rows": [],
    }
    folders = {"ours": Path(qsa_group.__file__).parents[1], "other": other}
    answers: Answers = {}
    begin = time.perf_counter()
    try:
        for start in range(options.starts):
            _measure(options, setup, start, folders, answers, result)
    finally:
        result["seconds"] = round(time.perf_counter() - begin, 1)
        result["rows"] = [_row(form.mode, point, measured) for point, measured in answers.items()]
        result["summary"] = _summaries(result["rows"])
        emit(result, options.json)  # An interrupted run still writes what it has.
    for row in result["rows"]:
        print(_line(row))
    for text in _closing(result):
        print(text)
    return result


def _measure(
    options: argparse.Namespace,
    setup: Setup,
    start: int,
    folders: dict[str, Path],
    answers: Answers,
    result: dict[str, Any],
) -> None:
    """One turn of each version at each point, in processes of their own. Every other start begins with the other."""
    begin = time.perf_counter()
    # With many steps, the host backend's time depends on where a process's buffers happen to lie.
    few_steps = [point for point in STUB_POINTS if point.steps == 2]
    names = list(folders)[:: -1 if start % 2 else 1]
    processes: dict[str, Process] = {}
    try:
        for name in names:
            processes[name] = Process(folders[name], setup)
            if not start:
                result[name] = asdict(processes[name].hello)
                print(f"{name}: qsa_group {result[name]['version']}, {result[name]['file']}", flush=True)
        for index, point in enumerate(few_steps if options.stub else grid_points(options)):
            if time.perf_counter() - begin > options.seconds / options.starts:
                result["skipped"].append([start, *point])
                continue
            ask = Ask(list(point), -(-options.batches // options.starts), graphs=0 if options.stub else 1)
            measured = answers.setdefault(point, {name: [] for name in folders})
            # The order alternates, so that neither version always runs after the other.
            for name in names[:: -1 if index % 2 else 1]:
                measured[name].append(processes[name].measure(ask))
    finally:
        for process in processes.values():
            process.close()
    print(f"start {start + 1} of {options.starts}: {time.perf_counter() - begin:.1f} s", flush=True)


def _row(mode: str, point: Point, answers: dict[str, list[Answer]]) -> Row:
    row: Row = {"mode": mode, **point._asdict(), "errors": {}, "ratios": {}}
    for name, turns in answers.items():
        row[name] = {"backend": turns[-1].backend}
        for kind in ("host_us", "gpu_us"):
            samples = [sample for turn in turns for sample in getattr(turn, kind)]
            if samples:
                row[name][kind] = summary(samples)
        for turn in turns:
            row["errors"].update({f"{name} {what}": text for what, text in turn.errors.items()})
    for ratio, kind in (("host", "host_us"), ("gpu", "gpu_us")):
        ours, other = (row[name].get(kind) for name in ("ours", "other"))
        if ours and other and other["median"]:
            row["ratios"][ratio] = round(ours["median"] / other["median"], 4)
    if row["ours"]["backend"] != row["other"]["backend"]:
        row["errors"]["backend"] = f"ours is {row['ours']['backend']!r}, the other is {row['other']['backend']!r}"
    return row


def _line(row: Row) -> str:
    cells = []
    for ratio, kind in (("host", "host_us"), ("gpu", "gpu_us")):
        if ratio in row["ratios"]:
            ours, other = (row[name][kind]["median"] for name in ("ours", "other"))
            cells.append(f"{ratio} ours {ours:8.3f} other {other:8.3f} us ({row['ratios'][ratio]:.3f})")
    return f"{point_name(row):<28}{'   '.join(cells)}{'  !' if row['errors'] else ''}"


def _summaries(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Median and worst ratio over the grid."""
    summaries = {}
    for ratio in ("host", "gpu"):
        measured = [row for row in rows if ratio in row["ratios"]]
        if not measured:
            continue
        worst = max(measured, key=lambda row: float(row["ratios"][ratio]))
        summaries[ratio] = {
            "points": len(measured),
            "median": round(statistics.median(row["ratios"][ratio] for row in measured), 4),
            "worst": worst["ratios"][ratio],
            "worst_at": point_name(worst),
        }
    return summaries


def _closing(result: dict[str, Any]) -> list[str]:
    lines = []
    for ratio, figures in result["summary"].items():
        lines.append(
            f"{ratio}: ours / other {figures['median']} in the median, {figures['worst']} at worst "
            f"({figures['worst_at']}), {figures['points']} points"
        )
    errors = {f"{name}: {text}": point_name(row) for row in result["rows"] for name, text in row["errors"].items()}
    lines += [f"  error, last at {point}: {text}" for text, point in errors.items()]
    if result["skipped"]:
        lines.append(f"  {len(result['skipped'])} turns skipped for time")
    return lines
