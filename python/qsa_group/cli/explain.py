"""``qsa-group explain``: how the steps of a description are grouped.

A description is a JSON object, such as ``EXAMPLE``. Its keys are "mode", "draft_token_num", "ring_size", "steps",
"absent" (names of buffers) and those of ``_SIZES``; all are optional. A step may have "offset", and "rows", "max_pages"
and "absent" of its own.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from qsa_group import FIELDS, Explanation, QsaGroupError, ReplayPlanner, RequestTable, StepBuffers

from .options import Commands, add_place, device_of

__all__ = ["DescriptionError", "add"]

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

_SIZES = {"compress_ratio": 4, "page_size": 64, "slots": 65, "width": 8192, "rows": 8, "max_pages": 128}
_MOST_ENTRIES = 1 << 28


class DescriptionError(QsaGroupError, ValueError):
    """A description of steps does not hold; the message names the key and its value."""


def add(commands: Commands) -> None:
    """Adds the command."""
    explain = commands.add_parser(
        "explain",
        help="say how steps are grouped, and what keeps one out",
        description="Plans the steps that a JSON file describes (see 'explain --example'), or those of the example, "
        "and says how they are grouped.",
    )
    source = explain.add_mutually_exclusive_group()
    source.add_argument("file", nargs="?", metavar="FILE", help="description of the steps (else: the example)")
    source.add_argument("--example", action="store_true", help="print the example's description; plan nothing")
    explain.add_argument("--json", action="store_true", help="print the explanation as JSON")
    add_place(explain)
    explain.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Plans and explains; returns the exit code."""
    if options.example:
        print(json.dumps(EXAMPLE, indent=2), flush=True)
        return 0
    description = EXAMPLE if options.file is None else _read(options.file)
    explanation = _explain(description, options.backend, device_of(options))
    print(json.dumps(explanation.data, indent=2) if options.json else explanation, flush=True)
    return 0


def _read(path: str) -> dict[str, Any]:
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DescriptionError(f"cannot read the description {path!r}: {error}; name a JSON file") from error
    if not isinstance(value, dict):
        raise DescriptionError(f"{path} must hold a JSON object; 'qsa-group explain --example' prints one")
    return value


def _explain(description: dict[str, Any], backend: str, device: torch.device) -> Explanation:
    """Makes the described buffers and plans them.

    Raises:
        DescriptionError: the description does not hold, or takes absurd memory.
        QsaGroupError: the planner refuses what it describes.
    """
    _check_names("the description", description, [*_SIZES, "ring_size", "mode", "draft_token_num", "absent", "steps"])
    sizes = {**_SIZES, **description}
    _check_sizes("the description", sizes)
    steps = description.get("steps", [{}])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DescriptionError("steps must be a list of objects; give one object a step")
    shapes = [_shapes(f"steps[{number}]", step, sizes) for number, step in enumerate(steps)]
    entries = sizes["slots"] * sizes["width"] + sum(math.prod(shape) for step in shapes for shape in step.values())
    if entries > _MOST_ENTRIES:
        raise DescriptionError(
            f"table and buffers have {entries} entries, must have at most {_MOST_ENTRIES}; lower "
            f"{', '.join(_SIZES)} or the number of steps"
        )
    table = torch.zeros((sizes["slots"], sizes["width"]), dtype=torch.int32, device=device)
    request_table = RequestTable(
        table,
        compress_ratio=sizes["compress_ratio"],
        page_size=sizes["page_size"],
        ring_size=description.get("ring_size"),
    )
    built = [
        StepBuffers(step.get("offset", number), **{name: _zeros(name, shape, device) for name, shape in own.items()})
        for number, (step, own) in enumerate(zip(steps, shapes, strict=True), 1)
    ]
    mode, drafted = description.get("mode", "decode"), description.get("draft_token_num")
    return ReplayPlanner(request_table, backend=backend).plan(built, mode, draft_token_num=drafted).explain()


def _shapes(place: str, step: dict[str, Any], sizes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each buffer that a step has."""
    _check_names(place, step, ["offset", "rows", "max_pages", "absent"])
    merged = {"absent": [], **sizes, **step}
    _check_sizes(place, merged)
    _check_names(f"{place}, absent", merged["absent"], FIELDS)
    columns = {"ring_group_locs": (merged["compress_ratio"],), "page_table": (merged["max_pages"],)}
    return {name: (merged["rows"], *columns.get(name, ())) for name in FIELDS if name not in merged["absent"]}


def _zeros(name: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64 if name == "pending_ring_slots" else torch.int32, device=device)


def _check_names(place: str, names: Any, known: Collection[str]) -> None:
    if not isinstance(names, dict | list):
        raise DescriptionError(f"{place} has value {names!r:.60}, must be a list; known are {', '.join(known)}")
    for name in names:
        if name not in known:
            raise DescriptionError(f"{place}: unknown {name!s:.60}; known are {', '.join(known)}")


def _check_sizes(place: str, values: dict[str, Any]) -> None:
    for name in _SIZES:
        if type(values[name]) is not int or values[name] < 0:
            raise DescriptionError(f"{place}: {name} has value {values[name]!r:.60}, must be a whole number; give one")
