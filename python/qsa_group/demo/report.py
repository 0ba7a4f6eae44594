"""The demo's results as a table for people, and the versions that they hold for."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import torch

from qsa_group import __version__

from .runner import RoundRunner

__all__ = ["MODE_WORDS", "device_name", "format_demo", "format_table", "place", "versions"]

MODE_WORDS = {"decode": "draft steps", "target_verify": "target verify", "draft_extend": "draft extend"}
"""What people call each mode."""


def versions() -> dict[str, str]:
    """Versions of everything that decides which code runs."""
    triton = "not installed"
    with contextlib.suppress(metadata.PackageNotFoundError):
        triton = metadata.version("triton")
    return {
        "qsa_group": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def device_name(device: torch.device) -> str:
    """The device in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return f"{device} ({name})"


def place(runner: RoundRunner) -> str:
    """Backend, device and versions in one line."""
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"backend {runner.planner.backend}, device {device_name(runner.device)}, {software}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns; the first is set left, the others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
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
    lookups = f"{stats['hits']:,} hits in {stats['hits'] + stats['misses']:,} look-ups"
    yield "plan cache", f"{lookups}, median {lookup['median']:.1f} us, not in the times below"
    if result.get("timeline"):
        yield "one round", _one_round(result["timeline"])
    yield "time", f"{result['wall_seconds']:.1f} s, checks included"


def _refreshes(result: dict[str, Any]) -> list[list[str]]:
    launches, alone, host = result["launches"], result["step_by_step"], result["host_us"]
    rows = []
    for mode, words in MODE_WORDS.items():
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
    apart, grouped = timeline["step_by_step"], timeline["grouped"]
    return (
        f"at batch {timeline['batch']}: {apart['launches']} launches in {apart['total']:.1f} us step by step, "
        f"{grouped['launches']} in {grouped['total']:.1f} us grouped (host, medians of {timeline['repeats']})"
    )


def _requests(counts: dict[str, Any]) -> str:
    text = (
        f"{counts['finished']:,} answered with {counts['generated_tokens']:,} tokens "
        f"in {counts['simulated_seconds']:,.0f} simulated s"
    )
    for name, words in (
        ("clipped", "of them cut at the context limit"),
        ("refused", "refused (prompt longer than the context)"),
        ("unserved", "not answered (round limit)"),
    ):
        if counts[name]:
            text += f", {counts[name]} {words}"
    return text
