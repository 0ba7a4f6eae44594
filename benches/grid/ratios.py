"""Rows of a result, and the ratios of their times."""

from __future__ import annotations

import statistics
from typing import Any

__all__ = ["RATIOS", "Row", "Value", "add_ratios", "median"]

Row = dict[str, Any]
"""What was measured at one grid point."""

Value = float | None

RATIOS = {
    # Name: (kind of time, numerator, denominator).
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
    """A median of a row; None where the time was not measured."""
    times = row.get(kind, {}).get(name)
    return times["median"] if times else None


def add_ratios(row: Row) -> None:
    """Writes `row["ratios"]`: of GPU times the ratio of the medians, of host times the median of the turns' ratios.

    The calls take turns, and a host's speed drifts within seconds. So host times of one turn are compared.
    """
    ratios: dict[str, float] = {}
    turns = row.get("host_turns", {})
    for name, (kind, numerator, denominator) in RATIOS.items():
        a, b = median(row, kind, numerator), median(row, kind, denominator)
        if a is None or not b:
            continue
        pairs: list[tuple[float, float]] = []
        if kind == "host_us":
            pairs = list(zip(turns.get(numerator, ()), turns.get(denominator, ()), strict=False))
        ratios[name] = round(statistics.median(x / y for x, y in pairs) if pairs else a / b, 4)
    row["ratios"] = ratios
