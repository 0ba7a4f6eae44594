"""The table that `launch.py` prints: a line a grid point, and what was reached of the targets."""

from __future__ import annotations

from .ratios import RATIOS, Row, Value, median
from .targets import point_name, verdicts

__all__ = ["closing", "header", "line"]

_COLUMNS = (
    # Heading, kind of time, name.
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
    """A row of the table. `!` marks a row with errors, `?` a row whose values were not compared."""

    def show(value: Value, width: int) -> str:
        return f"{value:>{width}.2f}" if value is not None else f"{'-':>{width}}"

    cells = "".join(show(median(row, kind, name), 9) for _, kind, name in _COLUMNS)
    ratios = "".join(f"{row['ratios'][name]:>13.3f}" if name in row["ratios"] else f"{'-':>13}" for name in RATIOS)
    mark = {True: "", None: "?", False: " WRONG VALUES"}[row.get("values_equal")]
    return f"{point_name(row):<28}{cells}{ratios} {'!' if row['errors'] else ''}{mark}"


def closing(mode: str, rows: list[Row]) -> str:
    """The targets with what was reached, and the errors that occurred."""
    lines = [f"{mode}: {len(rows)} points"]
    for verdict in verdicts(mode, rows):
        state = "no data" if not verdict["points"] else "pass" if verdict["pass"] else "FAIL"
        lines.append(
            f"  {state:<8}{verdict['target']:<62} <= {verdict['limit']:<5} worst {verdict['worst']} "
            f"({verdict['worst_at']}), median {verdict['median']}, {verdict['met']}/{verdict['points']} points"
        )
    points_of_error: dict[str, list[str]] = {}
    for row in rows:
        for name, text in row["errors"].items():
            points_of_error.setdefault(f"{name}: {text}", []).append(point_name(row))
    lines += [
        f"  error at {len(points)} points (first {points[0]}): {text}" for text, points in points_of_error.items()
    ]
    return "\n".join(lines)
