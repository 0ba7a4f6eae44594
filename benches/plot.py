"""Draws the result of ``launch.py``: host time by launch path, and GPU time against the released kernels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HOST = {
    "sglang_casts": ("SGLang, a step with casts", "#b2182b"),
    "sglang_per_step": ("SGLang, launch a step", "#ef8a62"),
    "sglang_fused": ("SGLang, fused", "#fdae61"),
    "triton": ("triton", "#92c5de"),
    "triton_c_launcher": ("Triton's C launcher", "#4393c3"),
    "torch_static": ("torch's static launcher", "#5aae61"),
    "direct": ("direct", "#2166ac"),
    "bare": ("bare cuLaunchKernel", "#666666"),
}


def _series(rows: list[Row], kind: str, name: str, **where: int) -> tuple[list[int], list[float]]:
    at = [r for r in rows if all(r[k] == v for k, v in where.items()) and name in r.get(kind, {})]
    at.sort(key=lambda r: r["batch"])
    return [r["batch"] for r in at], [r[kind][name]["median"] for r in at]


def _pick(values: set[int], wanted: int) -> int:
    return wanted if wanted in values else min(values, key=lambda v: abs(v - wanted))


def draw(data: dict[str, Any], path: str) -> None:
    """Writes the plot of one result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = data["rows"]
    few = _pick({r["steps"] for r in rows}, 2)
    many = max(r["steps"] for r in rows)
    context = _pick({r["context"] for r in rows}, 256 * 1024)
    live = _pick({r["live"] for r in rows if r["context"] == context}, 8 * 1024)
    figure, axes = pyplot.subplots(1, 3, figsize=(17, 6.4))
    for axis, steps in zip(axes, (few, many), strict=False):
        for name, (label, colour) in HOST.items():
            x, y = _series(rows, "host_us", name, steps=steps, context=context, live=live)
            if x:
                axis.plot(x, y, "o-", color=colour, label=label, markersize=4)
        axis.set_title(f"host time a refresh, {steps} step{'s' if steps > 1 else ''}")
    kinds = sorted({(r["context"], r["live"]) for r in rows})
    colours = pyplot.get_cmap("viridis")
    for i, (limit, length) in enumerate(kinds):
        shade = colours(i / max(len(kinds), 2))
        for name, style in (("sglang_fused", "--"), ("ours", "o-")):
            x, y = _series(rows, "gpu_us", name, steps=few, context=limit, live=length)
            if x:
                label = f"{'ours' if name == 'ours' else 'SGLang'}, {limit // 1024}K context, {length // 1024}K live"
                axes[2].plot(x, y, style, color=shade, label=label, markersize=4)
    x, y = _series(rows, "gpu_us", "empty", steps=few, context=context, live=live)
    axes[2].plot(x, y, ":", color="black", label="empty kernel")
    axes[2].set_title(f"GPU time as a graph node, {few} step{'s' if few > 1 else ''}")
    for axis in axes:
        # Below the axes, where no line runs.
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False, fontsize=8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("batch")
        axis.set_ylabel("us")
        axis.grid(alpha=0.3, which="both")
    env = data["environment"]
    figure.suptitle(
        f"{data['mode']}: {env.get('gpu', 'no GPU')}, driver {env.get('driver')}, torch {env.get('torch')}, "
        f"triton {env.get('triton')}"
        # Unpacked kernels do not tell their version.
        + (f", SGLang {data['sglang']}" if data.get("sglang", "unknown") != "unknown" else "")
    )
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Draws a result that was written earlier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json")
    parser.add_argument("png")
    options = parser.parse_args()
    draw(json.loads(Path(options.json).read_text()), options.png)


if __name__ == "__main__":
    main()
