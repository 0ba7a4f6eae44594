"""Draws the result of `launch.py`: host time by launcher, and GPU time against SGLang's released kernels.

python benches/plot.py result.json result.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from grid.ratios import Row

HOST = {
    # Name in the result: label and colour.
    "sglang_casts": ("SGLang, a step with casts", "#b2182b"),
    "sglang_per_step": ("SGLang, launch a step", "#ef8a62"),
    "sglang_fused": ("SGLang, fused", "#fdae61"),
    "triton": ("triton", "#92c5de"),
    "triton_c_launcher": ("Triton's C launcher", "#4393c3"),
    "torch_static": ("torch's static launcher", "#5aae61"),
    "direct": ("direct", "#2166ac"),
    "bare": ("bare cuLaunchKernel", "#666666"),
}


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the plot of one result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = data["rows"]
    few = _nearest({row["steps"] for row in rows}, 2)
    many = max(row["steps"] for row in rows)
    context = _nearest({row["context"] for row in rows}, 256 * 1024)
    live = _nearest({row["live"] for row in rows if row["context"] == context}, 8 * 1024)
    figure, axes = pyplot.subplots(1, 3, figsize=(17, 6.4))
    for axis, steps in zip(axes, (few, many), strict=False):
        _draw_host(axis, rows, steps=steps, context=context, live=live)
    _draw_gpu(axes[2], rows, pyplot.get_cmap("viridis"), steps=few, context=context, live=live)
    for axis in axes:
        # Below the axes, where no line runs.
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False, fontsize=8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("batch")
        axis.set_ylabel("us")
        axis.grid(alpha=0.3, which="both")
    figure.suptitle(_title(data))
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_host(axis: Any, rows: list[Row], *, steps: int, context: int, live: int) -> None:
    for name, (label, colour) in HOST.items():
        x, y = _series(rows, "host_us", name, steps=steps, context=context, live=live)
        if x:
            axis.plot(x, y, "o-", color=colour, label=label, markersize=4)
    axis.set_title(f"host time a refresh, {steps} step{'s' if steps > 1 else ''}")


def _draw_gpu(axis: Any, rows: list[Row], colours: Any, *, steps: int, context: int, live: int) -> None:
    lengths = sorted({(row["context"], row["live"]) for row in rows})
    for i, (limit, length) in enumerate(lengths):
        shade = colours(i / max(len(lengths), 2))
        for name, style in (("sglang_fused", "--"), ("ours", "o-")):
            x, y = _series(rows, "gpu_us", name, steps=steps, context=limit, live=length)
            if x:
                label = f"{'ours' if name == 'ours' else 'SGLang'}, {limit // 1024}K context, {length // 1024}K live"
                axis.plot(x, y, style, color=shade, label=label, markersize=4)
    x, y = _series(rows, "gpu_us", "empty", steps=steps, context=context, live=live)
    axis.plot(x, y, ":", color="black", label="empty kernel")
    axis.set_title(f"GPU time as a graph node, {steps} step{'s' if steps > 1 else ''}")


def _title(data: dict[str, Any]) -> str:
    env = data["environment"]
    title = (
        f"{data['mode']}: {env.get('gpu', 'no GPU')}, driver {env.get('driver')}, torch {env.get('torch')}, "
        f"triton {env.get('triton')}"
    )
    # Unpacked kernels do not tell their version.
    return title + (f", SGLang {data['sglang']}" if data.get("sglang", "unknown") != "unknown" else "")


def _series(rows: list[Row], kind: str, name: str, **where: int) -> tuple[list[int], list[float]]:
    """Batch sizes and medians of the rows with these steps, context and live length."""
    points = [row for row in rows if all(row[k] == v for k, v in where.items()) and name in row.get(kind, {})]
    points.sort(key=lambda row: row["batch"])
    return [row["batch"] for row in points], [row[kind][name]["median"] for row in points]


def _nearest(values: set[int], wanted: int) -> int:
    return min(values, key=lambda value: abs(value - wanted))


def main() -> None:
    """Draws a result that was written earlier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("png")
    options = parser.parse_args()
    draw(json.loads(Path(options.json).read_text()), options.png)


if __name__ == "__main__":
    main()
