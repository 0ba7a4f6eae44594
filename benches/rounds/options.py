"""The command line of `sglang_rounds.py`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SECTIONS", "Options", "arguments"]

SECTIONS = ("stall", "values", "launches", "host", "round")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        device: "cuda", or "cpu" for a dry run.
        steps: draft steps, which are one less than SGLang counts.
        max_batch: the largest bucket.
        context: context limit in tokens.
        workloads: CSV files of traces; none means a generated one.
        rounds: rounds of each trace.
        samples: timed calls behind each median.
        speed: how much faster than real the requests arrive, so that the buckets are full.
        sections: what to run.
        json: file of the result.
    """

    device: str
    steps: int
    max_batch: int
    context: int
    workloads: list[Path]
    rounds: int
    samples: int
    speed: float
    sections: tuple[str, ...]
    json: Path | None


def arguments(description: str | None, argv: list[str] | None = None) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=Path, action="append", default=[], help="CSV file of a trace")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of each trace")
    parser.add_argument("--samples", type=int, default=2000, help="timed calls behind each median")
    parser.add_argument("--steps", type=int, default=2, help="draft steps")
    parser.add_argument("--max-batch", type=int, default=64, help="largest bucket")
    parser.add_argument("--context", type=int, default=262144, help="context limit in tokens")
    parser.add_argument("--speed", type=float, default=4.0, help="requests arrive so many times as fast")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="what to run, joined by commas")
    parser.add_argument("--json", type=Path, help="write everything here")
    parser.add_argument("--dry-run-cpu", action="store_true", help="no GPU: host executor, stand-ins for graphs")
    values = parser.parse_args(argv)
    sections = tuple(values.sections.split(","))
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        parser.error(f"--sections has {', '.join(unknown)}, must be out of {', '.join(SECTIONS)}")
    return Options(
        device="cpu" if values.dry_run_cpu else "cuda",
        steps=values.steps,
        max_batch=values.max_batch,
        context=values.context,
        workloads=values.workload,
        rounds=values.rounds,
        samples=values.samples,
        speed=values.speed,
        sections=sections,
        json=values.json,
    )
