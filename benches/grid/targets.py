"""Figures that the results are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .ratios import Row, Value

__all__ = ["TARGETS", "Target", "point_name", "verdicts"]


@dataclass(frozen=True)
class Target:
    """A figure that must hold at every grid point to which it applies.

    Attributes:
        text: what is measured.
        limit: the largest value that meets the target.
        value: reads the value of a row.
        applies: whether the target applies to a row.
    """

    text: str
    limit: float
    value: Callable[[Row], Value]
    applies: Callable[[Row], bool] = lambda row: True


def _ratio(name: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        number: Value = row["ratios"].get(name)
        return number

    return value


def _recorded(key: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        figure = row.get("round", {}).get("recorded", {}).get(key)
        number: Value = figure["median"] if isinstance(figure, dict) else figure
        return number

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


def point_name(row: Row) -> str:
    """A grid point in a few letters."""
    return f"bs {row['batch']} steps {row['steps']} {row['context'] // 1024}K/{row['live'] // 1024}K"


def verdicts(mode: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Each target with its worst and median value, and how many points meet it."""
    results = []
    for target in TARGETS[mode]:
        values = [(value, row) for row in rows if target.applies(row) and (value := target.value(row)) is not None]
        values.sort(key=lambda pair: pair[0])
        met = sum(value <= target.limit for value, _ in values)
        results.append(
            {
                "target": target.text,
                "limit": target.limit,
                "points": len(values),
                "met": met,
                "pass": bool(values) and met == len(values),
                "worst": round(values[-1][0], 4) if values else None,
                "worst_at": point_name(values[-1][1]) if values else None,
                "median": round(values[len(values) // 2][0], 4) if values else None,
            }
        )
    return results
