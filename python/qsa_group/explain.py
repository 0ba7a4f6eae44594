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
import math
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
_MOST_ROWS = 1 << 20
_RANGES = {
    "compress_ratio": (1, (1 << 31) - 1, "give the tokens of a compressed group, often 4"),
    "page_size": (1, (1 << 31) - 1, "give the tokens of a page, a multiple of compress_ratio"),
    "slots": (1, _MOST_ENTRIES, "give the rows of the request table"),
    "width": (1, _MOST_ENTRIES, "give the tokens of a row of the request table"),
    "rows": (1, _MOST_ROWS, "give the rows of a step's buffers; split larger buckets"),
    "max_pages": (1, _MOST_ENTRIES, "give the columns of the page table"),
    "draft_token_num": (1, _MOST_ROWS, "give the rows of a request in verify"),
    "offset": (0, 1 << 29, "give what the step adds to a request's length, usually its number in steps + 1"),
}
"""Least, most and remedy by key; the planner's own bounds, or what can be built here."""


class DescriptionError(QsaGroupError, ValueError):
    """A description of layouts does not hold; the message names the key, its value, what it must be, and a remedy."""


def read_description(path: str | Path) -> dict[str, Any]:
    """Reads a description from a JSON file.

    Raises:
        DescriptionError: the file is missing or does not hold a JSON object.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DescriptionError(f"cannot read the description {path}: {error}") from error
    if not isinstance(value, dict):
        raise DescriptionError(
            f"{path} holds {_short(value)}, must hold a JSON object; 'qsa-group explain --example' prints one"
        )
    return value


def explain_description(description: dict[str, Any], *, backend: str, device: str) -> Explanation:
    """Builds the buffers of a description, plans them, and returns the plan's explanation.

    Raises:
        DescriptionError: the description does not hold, or is too large to build.
        QsaGroupError: the planner refuses what it describes.
    """
    _known("the description", description, _TOP)
    sizes = {name: _size("", description, name, default) for name, default in _DEFAULTS.items()}
    mode = description.get("mode", "decode")
    if mode not in _MODES:
        raise DescriptionError(f"mode has value {_short(mode)}, must be one of {', '.join(_MODES)}; give one of these")
    drafted = None
    if mode == "target_verify" or "draft_token_num" in description:  # The planner refuses it in other modes.
        drafted = _size("", description, "draft_token_num", 4)
    steps = description.get("steps", [{}])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DescriptionError(f"steps has value {_short(steps)}, must be a list of objects; give one object a step")
    if sizes["slots"] * sizes["width"] > _MOST_ENTRIES:
        raise DescriptionError(
            f"slots and width have values {sizes['slots']} and {sizes['width']}, must be at most {_MOST_ENTRIES} "
            "multiplied, to be built here; lower one of them"
        )
    table = RequestTable(
        torch.zeros((sizes["slots"], sizes["width"]), dtype=torch.int32, device=device),
        compress_ratio=sizes["compress_ratio"],
        page_size=sizes["page_size"],
    )
    buffers: list[dict[str, torch.Tensor]] = []
    built = []
    room = _MOST_ENTRIES
    for number, step in enumerate(steps):
        offset = _size(f"steps[{number}]: ", step, "offset", number + 1)
        own = _buffers(number, {"absent": description.get("absent", []), **step}, sizes, buffers, room, device)
        room -= sum(buffer.numel() for name, buffer in own.items() if name not in step.get("same", {}))
        buffers.append(own)
        built.append(StepBuffers(offset, **own))
    return ReplayPlanner(table, backend=backend).plan(built, mode, draft_token_num=drafted).explain()


def _buffers(
    number: int,
    step: dict[str, Any],
    sizes: dict[str, int],
    earlier: list[dict[str, torch.Tensor]],
    room: int,
    device: str,
) -> dict[str, torch.Tensor]:
    place = f"steps[{number}]"
    _known(place, step, _STEP)
    rows, pages = (_size(f"{place}: ", step, name, sizes[name]) for name in ("rows", "max_pages"))
    absent, same = step["absent"], step.get("same", {})
    if not isinstance(absent, list):
        raise DescriptionError(
            f"{place}: absent has value {_short(absent)}, must be a list of buffers; give their names, or []"
        )
    if not isinstance(same, dict):
        raise DescriptionError(
            f"{place}: same has value {_short(same)}, must be an object from buffer to step number; leave it out, or "
            'give one such as {"write_locs": 0}'
        )
    _known(f"{place}, absent", dict.fromkeys(map(str, absent)), set(FIELDS))
    _known(f"{place}, same", same, set(FIELDS))
    columns = {"ring_group_locs": (sizes["compress_ratio"],), "page_table": (pages,)}
    shapes = {name: (rows, *columns.get(name, ())) for name in FIELDS if name not in absent and name not in same}
    if sum(map(math.prod, shapes.values())) > room:
        raise DescriptionError(
            f"{place}: its buffers, with rows {rows}, max_pages {pages} and compress_ratio {sizes['compress_ratio']}, "
            f"must have at most the {room} entries that are left of {_MOST_ENTRIES} for all steps; describe fewer "
            "rows, pages or steps"
        )
    out = {}
    for name in FIELDS:
        if name in same:
            if name in absent:
                raise DescriptionError(f"{place}: {name} is both in absent and in same; leave it out of one")
            out[name] = _earlier(place, name, same[name], earlier)
        elif name in shapes:
            dtype = torch.int64 if name == "pending_ring_slots" else torch.int32
            out[name] = torch.zeros(shapes[name], dtype=dtype, device=device)
    return out


def _earlier(place: str, name: str, step: Any, earlier: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    if type(step) is not int or not 0 <= step < len(earlier) or name not in earlier[step]:
        raise DescriptionError(
            f"{place}: same.{name} has value {_short(step)}, must be the number of an earlier step with that buffer; "
            "steps count from 0"
        )
    return earlier[step][name]


def _known(place: str, value: dict[str, Any], names: set[str]) -> None:
    unknown = sorted(set(value) - names)
    if unknown:
        raise DescriptionError(
            f"{place}: unknown {_short(', '.join(unknown), quoted=False)}; known are {', '.join(sorted(names))}"
        )


def _size(place: str, value: dict[str, Any], name: str, default: int) -> int:
    found = value.get(name, default)
    least, most, remedy = _RANGES[name]
    if type(found) is not int or not least <= found <= most:
        raise DescriptionError(
            f"{place}{name} has value {_short(found)}, must be a whole number from {least} to {most}; {remedy}"
        )
    return found


def _short(value: Any, *, quoted: bool = True) -> str:
    """The value as JSON has it, cut where a whole list would hide the message."""
    text = json.dumps(value) if quoted else value
    return text if len(text) <= 60 else text[:57] + "..."
