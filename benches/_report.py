"""Ratios of a launch bench, the targets they are held against, and the table that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Value = float | None

RATIOS = {
    # name: (kind, of, against)
    "direct/bare": ("host_us", "direct", "bare"),
    "direct/fused": ("host_us", "direct", "sglang_fused"),
    "direct/step": ("host_us", "direct", "sglang_per_step"),
    "direct/casts": ("host_us", "direct", "sglang_casts"),
    "gpu/fused": ("gpu_us", "ours", "sglang_fused"),
    "gpu/step": ("gpu_us", "ours", "sglang_per_step"),
    "gpu/empty": ("gpu_us", "ours", "empty"),
    "gpu/copy": ("gpu_us", "ours", "copy"),
    "copy/fused": ("gpu_us", "copy", "sglang_fused"),
    "copy/empty": ("gpu_us", "copy", "empty"),
    "bare/casts": ("host_us", "bare", "sglang_casts"),
}


def median(row: Row, kind: str, name: str) -> Value:
    """A median of a row, or None where it was not measured."""
    found = row.get(kind, {}).get(name)
    return found["median"] if found else None


def add_ratios(row: Row) -> None:
    """Writes ``row["ratios"]``: of GPU times the ratio of the medians, of host times the median of the turns' ratios.

    The variants take turns, and a host's speed drifts within seconds, so that times of one turn are compared.
    """
    ratios: dict[str, float] = {}
    turns = row.get("host_turns", {})
    for name, (kind, of, against) in RATIOS.items():
        a, b = median(row, kind, of), median(row, kind, against)
        if a is None or not b:
            continue
        pairs = list(zip(turns.get(of, ()), turns.get(against, ()), strict=False)) if kind == "host_us" else []
        ratios[name] = round(statistics.median(x / y for x, y in pairs) if pairs else a / b, 4)
    row["ratios"] = ratios


@dataclass(frozen=True)
class Target:
    """A figure that must hold at every grid point that it applies to."""

    text: str
    limit: float
    value: Callable[[Row], Value]
    applies: Callable[[Row], bool] = lambda row: True


def _ratio(name: str) -> Callable[[Row], Value]:
    return lambda row: row["ratios"].get(name)


def _recorded(key: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        found = row.get("round", {}).get("recorded", {}).get(key)
        return found["median"] if isinstance(found, dict) else found

    return value


def _wide(row: Row) -> bool:
    return bool(row["batch"] >= 256 and row["context"] == 256 * 1024 and row["live"] == 8 * 1024)


def _short(row: Row) -> bool:
    return bool(row["batch"] <= 64 and row["live"] == 8 * 1024)


_RECORDED = [
    Target("recorded: launches outside the graph a round", 0, _recorded("launches")),
    Target("recorded: host us a round beyond the graph's own", 1.0, _recorded("added_us")),
]
TARGETS = {
    "decode": [
        Target("host direct / bare cuLaunchKernel", 1.3, _ratio("direct/bare")),
        Target("host direct / SGLang fused, 2 steps", 0.22, _ratio("direct/fused"), lambda r: r["steps"] == 2),
        Target("host direct / SGLang fused, 7 steps", 0.10, _ratio("direct/fused"), lambda r: r["steps"] == 7),
        Target("host direct / a step with casts, 2 steps up", 0.04, _ratio("direct/casts"), lambda r: r["steps"] > 1),
        Target("host direct / a step with casts, 1 step", 0.04, _ratio("direct/casts"), lambda r: r["steps"] == 1),
        *_RECORDED,
        Target("GPU ours / SGLang fused (1.03 is noise)", 1.03, _ratio("gpu/fused")),
        Target(
            "GPU ours / SGLang fused, batch >= 256, 256K context, 8K live",
            0.05,
            _ratio("gpu/fused"),
            _wide,
        ),
        Target("the same of the copy kernel", 0.05, _ratio("copy/fused"), _wide),
        Target("GPU ours / empty kernel, batch <= 64, 8K live", 2.2, _ratio("gpu/empty"), _short),
        Target("the same of the copy kernel", 2.2, _ratio("copy/empty"), _short),
    ],
    "target_verify": [
        Target("host direct / bare cuLaunchKernel", 1.3, _ratio("direct/bare")),
        Target("host direct / SGLang", 0.20, _ratio("direct/fused")),
        *_RECORDED,
        Target("GPU ours / SGLang (1.03 is noise)", 1.03, _ratio("gpu/fused")),
    ],
    "draft_extend": [
        Target("host direct / bare cuLaunchKernel", 1.3, _ratio("direct/bare")),
        Target("host direct / SGLang (two launches)", 0.15, _ratio("direct/fused")),
        *_RECORDED,
        Target("GPU ours / SGLang, batch 64", 0.6, _ratio("gpu/fused"), lambda r: r["batch"] == 64),
        Target("GPU ours / SGLang, batch 512", 0.2, _ratio("gpu/fused"), lambda r: r["batch"] == 512),
        Target("GPU ours / SGLang (1.03 is noise)", 1.03, _ratio("gpu/fused")),
    ],
}


def point(row: Row) -> str:
    """A grid point in a few letters."""
    return f"bs {row['batch']} steps {row['steps']} {row['context'] // 1024}K/{row['live'] // 1024}K"


def verdicts(mode: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Each target with its worst and median point, and how many points meet it."""
    found = []
    for target in TARGETS[mode]:
        here = [(value, row) for row in rows if target.applies(row) and (value := target.value(row)) is not None]
        here.sort(key=lambda pair: pair[0])
        met = sum(value <= target.limit for value, _ in here)
        found.append(
            {
                "target": target.text,
                "limit": target.limit,
                "points": len(here),
                "met": met,
                "pass": bool(here) and met == len(here),
                "worst": round(here[-1][0], 4) if here else None,
                "worst_at": point(here[-1][1]) if here else None,
                "median": round(here[len(here) // 2][0], 4) if here else None,
            }
        )
    return found


_COLUMNS = (
    ("direct", "host_us", "direct"),
    ("bare", "host_us", "bare"),
    ("triton", "host_us", "triton"),
    ("C-launch", "host_us", "triton_c_launcher"),
    ("static", "host_us", "torch_static"),
    ("fused", "host_us", "sglang_fused"),
    ("step", "host_us", "sglang_per_step"),
    ("casts", "host_us", "sglang_casts"),
    ("g.ours", "gpu_us", "ours"),
    ("g.fused", "gpu_us", "sglang_fused"),
    ("g.empty", "gpu_us", "empty"),
    ("g.copy", "gpu_us", "copy"),
)


def header() -> str:
    """First line of the table."""
    return f"{'point (us)':<28}" + "".join(f"{c[0]:>9}" for c in _COLUMNS) + "".join(f"{n:>13}" for n in RATIOS)


def line(row: Row) -> str:
    """A row of the table; ``!`` marks a row with errors, ``?`` one whose values were not compared."""

    def show(value: Value, width: int) -> str:
        return f"{value:>{width}.2f}" if value is not None else f"{'-':>{width}}"

    cells = "".join(show(median(row, kind, name), 9) for _, kind, name in _COLUMNS)
    ratios = "".join(f"{row['ratios'][name]:>13.3f}" if name in row["ratios"] else f"{'-':>13}" for name in RATIOS)
    mark = {True: "", None: "?", False: " WRONG VALUES"}[row.get("values_equal")]
    return f"{point(row):<28}{cells}{ratios} {'!' if row['errors'] else ''}{mark}"


def closing(mode: str, rows: list[Row]) -> str:
    """Targets with what was reached, and the errors that occurred."""
    lines = [f"{mode}: {len(rows)} points"]
    for verdict in verdicts(mode, rows):
        state = "no data" if not verdict["points"] else "pass" if verdict["pass"] else "FAIL"
        lines.append(
            f"  {state:<8}{verdict['target']:<62} <= {verdict['limit']:<5} worst {verdict['worst']} "
            f"({verdict['worst_at']}), median {verdict['median']}, {verdict['met']}/{verdict['points']} points"
        )
    errors: dict[str, list[str]] = {}
    for row in rows:
        for name, text in row["errors"].items():
            errors.setdefault(f"{name}: {text}", []).append(point(row))
    lines += [f"  error at {len(at)} points (first {at[0]}): {text}" for text, at in errors.items()]
    return "\n".join(lines)
