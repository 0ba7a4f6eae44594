"""Layouts described in JSON, made into real buffers, planned and explained.

A description is an object. All keys are optional::

    {
      "mode": "decode",              // or "target_verify", "draft_extend"
      "draft_token_num": 4,          // target verify only
      "compress_ratio": 4, "page_size": 64, "slots": 65, "width": 8192,
      "rows": 8, "max_pages": 128, "absent": [],
      "steps": [                     // each may override rows, max_pages, absent, and say:
        {"offset": 1},
        {"offset": 2, "max_pages": 64},
        {"offset": 3, "absent": ["page_table"]},
        {"offset": 4, "same": {"write_locs": 0}}   // the very buffer of step 0
      ]
    }
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from .check import FIELDS
from .errors import QsaGroupError
from .planner import Explanation, ReplayPlanner, RequestTable, StepBuffers

__all__ = ["EXAMPLE", "DescriptionError", "explain_description", "read_description"]

EXAMPLE: dict[str, Any] = {
    "mode": "decode",
    "compress_ratio": 4,
    "page_size": 64,
    "rows": 8,
    "max_pages": 128,
    "steps": [
        {"offset": 1},
        {"offset": 2},
        {"offset": 3, "max_pages": 64},
        {"offset": 4, "absent": ["page_table"]},
    ],
}
"""Two steps that fit together, one with a narrower page table, and one without any."""

_MODES = ("decode", "target_verify", "draft_extend")
_DEFAULTS = {"compress_ratio": 4, "page_size": 64, "slots": 65, "width": 8192, "rows": 8, "max_pages": 128}
_TOP = {*_DEFAULTS, "mode", "draft_token_num", "absent", "steps"}
_STEP = {"offset", "rows", "max_pages", "absent", "same"}
_MOST_ENTRIES = 1 << 28


class DescriptionError(QsaGroupError, ValueError):
    """A description of layouts does not hold; the message names the key."""


def read_description(path: str | Path) -> dict[str, Any]:
    """Reads a description from a JSON file."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DescriptionError(f"cannot read the description {path}: {error}") from error
    if not isinstance(value, dict):
        raise DescriptionError(f"{path}: expected a JSON object")
    return value


def explain_description(description: dict[str, Any], *, backend: str, device: str) -> Explanation:
    """Builds the buffers of a description, plans them, and returns the plan's explanation."""
    _known("the description", description, _TOP)
    sizes = {name: _size(description, name, default) for name, default in _DEFAULTS.items()}
    mode = description.get("mode", "decode")
    if mode not in _MODES:
        raise DescriptionError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
    drafted = _size(description, "draft_token_num", 4) if mode == "target_verify" else None
    steps = description.get("steps", [{}])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DescriptionError("steps must be a list of objects")
    if sizes["slots"] * sizes["width"] > _MOST_ENTRIES:
        raise DescriptionError(f"a table of {sizes['slots']} x {sizes['width']} entries is too large to build here")
    table = RequestTable(
        torch.zeros((sizes["slots"], sizes["width"]), dtype=torch.int32, device=device),
        compress_ratio=sizes["compress_ratio"],
        page_size=sizes["page_size"],
    )
    buffers: list[dict[str, torch.Tensor]] = []
    built = []
    for number, step in enumerate(steps):
        buffers.append(_buffers(number, {"absent": description.get("absent", []), **step}, sizes, buffers, device))
        built.append(StepBuffers(_size(step, "offset", number + 1, least=0), **buffers[-1]))
    return ReplayPlanner(table, backend=backend).plan(built, mode, draft_token_num=drafted).explain()


def _buffers(
    number: int,
    step: dict[str, Any],
    sizes: dict[str, int],
    earlier: list[dict[str, torch.Tensor]],
    device: str,
) -> dict[str, torch.Tensor]:
    place = f"steps[{number}]"
    _known(place, step, _STEP)
    rows, pages = _size(step, "rows", sizes["rows"]), _size(step, "max_pages", sizes["max_pages"])
    if rows * max(pages, sizes["compress_ratio"]) > _MOST_ENTRIES:
        raise DescriptionError(f"{place}: {rows} rows of {pages} pages are too many to build here")
    absent, same = step["absent"], step.get("same", {})
    if not isinstance(absent, list) or not isinstance(same, dict):
        raise DescriptionError(
            f"{place}: absent must be a list of buffers, and same an object from buffer to step number"
        )
    _known(f"{place}, absent", dict.fromkeys(map(str, absent)), set(FIELDS))
    _known(f"{place}, same", same, set(FIELDS))
    shapes = {"ring_group_locs": (rows, sizes["compress_ratio"]), "page_table": (rows, pages)}
    out = {}
    for name in FIELDS:
        if name in absent:
            continue
        if name in same:
            out[name] = _earlier(place, name, same[name], earlier)
            continue
        dtype = torch.int64 if name == "pending_ring_slots" else torch.int32
        out[name] = torch.zeros(shapes.get(name, (rows,)), dtype=dtype, device=device)
    return out


def _earlier(place: str, name: str, step: Any, earlier: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    if type(step) is not int or not 0 <= step < len(earlier) or name not in earlier[step]:
        raise DescriptionError(f"{place}: same.{name} is {step!r}, which is not an earlier step with that buffer")
    return earlier[step][name]


def _known(place: str, value: dict[str, Any], names: set[str]) -> None:
    unknown = sorted(set(value) - names)
    if unknown:
        raise DescriptionError(f"{place}: unknown {', '.join(unknown)}; known are {', '.join(sorted(names))}")


def _size(value: dict[str, Any], name: str, default: int, *, least: int = 1) -> int:
    found = value.get(name, default)
    if type(found) is not int or not least <= found < 1 << 31:
        raise DescriptionError(f"{name} must be a whole number, {least} or more, not {found!r}")
    return found
