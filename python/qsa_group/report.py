"""The demo's results as a table for people."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["format_demo", "format_table", "versions"]

_MODE_WORDS = {"decode": "draft steps", "target_verify": "target verify", "draft_extend": "draft extend"}


def versions() -> dict[str, str]:
    """Versions of everything that decides which code runs."""
    from qsa_group import __version__

    found = {
        "qsa_group": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": "not installed",
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if "triton" not in sys.modules:
        try:
            import triton  # noqa: F401
        except ImportError:
            pass
    if "triton" in sys.modules:
        found["triton"] = str(getattr(sys.modules["triton"], "__version__", "unknown"))
    return found


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type != "cuda":
        return f"{device} ({platform.processor() or platform.machine()})"
    return f"{device} ({torch.cuda.get_device_name(device)})"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns; the first is set left, the others right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths)))
        for line in lines
    ]
    return "\n".join([text[0].rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in text[1:])])


def format_demo(result: dict[str, Any]) -> str:
    """The closing report of the demo or of a replay, from its JSON form."""
    launches, alone, host = result["launches"], result["step_by_step"], result["host_us"]
    rows = []
    for mode, words in _MODE_WORDS.items():
        groups = " ".join("+".join(str(step + 1) for step in group) for group in result["groups"][mode]) or "-"
        rows.append([words, f"{launches[mode]:,}", f"{alone[mode]:,}", groups, *_times(host[mode])])
    total, total_alone = sum(launches.values()), sum(alone.values())
    rows.append(["whole round", f"{total:,}", f"{total_alone:,}", "", *_times(host["round"])])
    stats, settings = result["planner"], result["settings"]
    lookups = stats["hits"] + stats["misses"]
    facts = [
        ("traffic", result["traffic"]),
        ("ran on", f"backend {result['backend']}, device {result['device']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())),
        (
            "layout",
            f"{settings['steps']} draft steps, ratio {settings['compress_ratio']}, page {settings['page_size']}, "
            f"context {settings['context']:,}, buckets up to {settings['max_batch']}"
            + (", draft steps share indices" if settings["index_sharing"] else ""),
        ),
        ("rounds", f"{result['rounds']:,}, each checked in full: {result['checked_refreshes']:,} refreshes"),
    ]
    if "requests" in result:
        facts.insert(1, ("requests", _requests(result)))
    facts += [
        ("plan cache", f"{stats['hits']:,} hits in {lookups:,} look-ups, a look-up {_times(host['plan_lookup'])[0]} us (median)"),
        ("time", f"{result['wall_seconds']:.1f} s, checks included"),
    ]
    facts += [("fallback", text) for text in result["fallbacks"]]
    if result.get("timeline"):
        line = result["timeline"]
        facts.append(
            (
                f"batch {line['batch']}",
                f"{line['step_by_step']['launches']} launches in {line['step_by_step']['total']:.1f} us step by step, "
                f"{line['grouped']['launches']} in {line['grouped']['total']:.1f} us grouped (host, medians of {line['repeats']})",
            )
        )
    width = max(len(name) for name, _ in facts)
    header = ["refresh", "launches", "step by step", "groups", "host us median", "p99"]
    verdict = f"mismatches: {result['mismatches']}"
    return "\n".join(
        [
            *(f"{name.ljust(width)}  {text}" for name, text in facts),
            "",
            format_table(header, rows),
            "",
            verdict,
            *(f"  {text}" for text in result["first_differences"]),
        ]
    )


def _times(times: dict[str, float]) -> list[str]:
    return [f"{times['median']:.2f}", f"{times['p99']:.2f}"]


def _requests(result: dict[str, Any]) -> str:
    counts = result["requests"]
    text = f"{counts['finished']:,} answered with {counts['generated_tokens']:,} tokens in {counts['simulated_seconds']:,.0f} simulated s"
    if counts["clipped"]:
        text += f", {counts['clipped']} of them cut at the context limit"
    if counts["refused"]:
        text += f", {counts['refused']} refused (prompt longer than the context)"
    if counts["unserved"]:
        text += f", {counts['unserved']} not answered (round limit)"
    return text
