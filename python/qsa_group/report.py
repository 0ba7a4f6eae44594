"""The demo's results as a table for people."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import torch

__all__ = ["format_demo", "format_table", "versions"]

_MODE_WORDS = {"decode": "draft steps", "target_verify": "target verify", "draft_extend": "draft extend"}


def versions() -> dict[str, str]:
    """Versions of everything that decides which code runs."""
    from . import __version__

    found = {
        "qsa_group": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": "not installed",
        "platform": f"{platform.system()} {platform.machine()}",
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["triton"] = metadata.version("triton")
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
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join(
        [text[0].rstrip(), "  ".join("-" * width for width in widths), *(line.rstrip() for line in text[1:])]
    )


def format_demo(result: dict[str, Any]) -> str:
    """The closing report of the demo or of a replay, from its JSON form."""
    facts = list(_facts(result))
    width = max(len(name) for name, _ in facts)
    header = ["refresh", "launches", "step by step", "groups", "host us median", "p99"]
    lines = [f"{name.ljust(width)}  {text}" for name, text in facts]
    lines += ["", format_table(header, _refreshes(result)), "", f"mismatches: {result['mismatches']}"]
    return "\n".join(lines + [f"  {text}" for text in result["first_differences"]])


def _facts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "traffic", result["traffic"]
    if "requests" in result:
        yield "requests", _requests(result["requests"])
    yield "ran on", f"backend {result['backend']}, device {result['device']}"
    for text in result["fallbacks"]:
        yield "fallback", text
    yield "versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield "layout", _layout(result["settings"])
    yield "rounds", f"{result['rounds']:,}; {result['checked_refreshes']:,} refreshes, each checked in full"
    stats, lookup = result["planner"], result["host_us"]["plan_lookup"]
    lookups = stats["hits"] + stats["misses"]
    yield (
        "plan cache",
        f"{stats['hits']:,} hits in {lookups:,} look-ups, median {lookup['median']:.1f} us, not in the times below",
    )
    if result.get("timeline"):
        yield "one round", _one_round(result["timeline"])
    yield "time", f"{result['wall_seconds']:.1f} s, checks included"


def _refreshes(result: dict[str, Any]) -> list[list[str]]:
    launches, alone, host = result["launches"], result["step_by_step"], result["host_us"]
    rows = []
    for mode, words in _MODE_WORDS.items():
        groups = " ".join("+".join(str(step + 1) for step in group) for group in result["groups"][mode])
        rows.append([words, f"{launches[mode]:,}", f"{alone[mode]:,}", groups, *_times(host[mode])])
    total, total_alone = sum(launches.values()), sum(alone.values())
    return [*rows, ["whole round", f"{total:,}", f"{total_alone:,}", "", *_times(host["round"])]]


def _times(times: dict[str, float]) -> list[str]:
    return [f"{times['median']:.2f}", f"{times['p99']:.2f}"]


def _layout(settings: dict[str, Any]) -> str:
    text = (
        f"{settings['steps']} draft steps, ratio {settings['compress_ratio']}, page {settings['page_size']}, "
        f"context {settings['context']:,}, buckets up to {settings['max_batch']}"
    )
    return text + (", draft steps share indices" if settings["index_sharing"] else "")


def _one_round(timeline: dict[str, Any]) -> str:
    before, after = timeline["step_by_step"], timeline["grouped"]
    return (
        f"at batch {timeline['batch']}: {before['launches']} launches in {before['total']:.1f} us step by step, "
        f"{after['launches']} in {after['total']:.1f} us grouped (host, medians of {timeline['repeats']})"
    )


def _requests(counts: dict[str, Any]) -> str:
    text = (
        f"{counts['finished']:,} answered with {counts['generated_tokens']:,} tokens "
        f"in {counts['simulated_seconds']:,.0f} simulated s"
    )
    if counts["clipped"]:
        text += f", {counts['clipped']} of them cut at the context limit"
    if counts["refused"]:
        text += f", {counts['refused']} refused (prompt longer than the context)"
    if counts["unserved"]:
        text += f", {counts['unserved']} not answered (round limit)"
    return text
