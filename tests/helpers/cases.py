"""The handed cases as rounds, and page-aligned request tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.oracle import Round

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


def round_of(case: Mapping[str, Any]) -> Round:
    """A handed case in the oracle's terms."""
    pages = {int(slot): ids for slot, ids in case["pages"].items()}
    return Round(
        table=table_of(pages, case["num_slots"], case["table_width"], case["page_size"]),
        seq_lens=case["seq_lens"],
        slots=case["req_pool_indices"],
        rows=case.get("num_rows", case["bs"]),
        ratio=case["compress_ratio"],
        page=case["page_size"],
        mode=case["mode"],
        offsets=[step + 1 for step in range(case.get("steps", 1))],
        draft_token_num=case.get("draft_token_num"),
        extend_lens=case.get("extend_lens"),
        num_padding=case["num_padding"],
        max_pages=case["max_pages"],
        ring=case.get("ring_size"),
    )
