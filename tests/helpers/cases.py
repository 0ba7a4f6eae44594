"""The handed cases in the oracle's terms, and page-aligned request tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.oracle import Case

CASES: list[dict[str, Any]] = [
    case
    for name in ("replay_cases.json", "ring_cases.json")
    for case in json.loads((Path(__file__).parents[1] / "data" / name).read_text())
]


def table_of(pages: Mapping[int, Sequence[int]], slots: int, width: int, page_size: int) -> npt.NDArray[np.int32]:
    """A request table whose listed slots hold these pages; all else is zero."""
    table = np.zeros((slots, width), dtype=np.int32)
    token = np.arange(width)
    for slot, ids in pages.items():
        filled = min(width, len(ids) * page_size)
        at = token[:filled]
        table[slot, :filled] = np.asarray(ids, dtype=np.int64)[at // page_size] * page_size + at % page_size
    return table


def random_table(rng: np.random.Generator, slots: int, width: int, page_size: int) -> npt.NDArray[np.int32]:
    """A table of pages in random order, no page used twice; slot 0 is all zero."""
    pages = -(-width // page_size)
    ids = (rng.permutation((slots - 1) * pages) + 1).reshape(slots - 1, pages)
    return table_of({slot + 1: row.tolist() for slot, row in enumerate(ids)}, slots, width, page_size)


def case_of(handed: Mapping[str, Any]) -> Case:
    """A handed case in the oracle's terms."""
    pages = {int(slot): ids for slot, ids in handed["pages"].items()}
    return Case(
        table=table_of(pages, handed["num_slots"], handed["table_width"], handed["page_size"]),
        seq_lens=handed["seq_lens"],
        slots=handed["req_pool_indices"],
        rows=handed.get("num_rows", handed["bs"]),
        ratio=handed["compress_ratio"],
        page=handed["page_size"],
        mode=handed["mode"],
        offsets=[step + 1 for step in range(handed.get("steps", 1))],
        draft_token_num=handed.get("draft_token_num"),
        extend_lens=handed.get("extend_lens"),
        num_padding=handed["num_padding"],
        max_pages=handed["max_pages"],
        ring=handed.get("ring_size"),
    )
