"""The contract of docs/semantics.md in plain Python: slow, and independent of the product.

Every number is a Python integer, so nothing here can overflow, wrap or truncate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

FIELDS = (
    "sequence_lengths",
    "row_req_pool_indices",
    "prefix_lengths",
    "compressed_lengths",
    "write_locs",
    "logical_positions",
    "pending_ring_slots",
    "ring_group_locs",
    "page_table",
)
MODES = ("decode", "target_verify", "draft_extend")

SLOT_OUT_OF_TABLE = 1
LENGTH_NOT_POSITIVE = 2
LENGTH_EXCEEDS_TABLE = 4
ROWS_EXCEED_BUCKET = 8
EXTEND_LENGTH_NEGATIVE = 16


@dataclass(frozen=True)
class Case:
    """Everything that one refresh depends on."""

    table: npt.NDArray[np.int32]
    seq_lens: Sequence[int]
    slots: Sequence[int]
    rows: int
    ratio: int = 4
    page: int = 64
    mode: str = "decode"
    offsets: Sequence[int] = (1,)
    draft_token_num: int | None = None
    extend_lens: Sequence[int] | None = None
    num_padding: int = 0
    padding: str = "count"
    max_pages: int | None = None
    ring: int | None = None

    @property
    def ring_size(self) -> int:
        """Entries of a request's pending ring."""
        return self.ratio if self.ring is None else self.ring

    @property
    def steps(self) -> int:
        return len(self.offsets)

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    @property
    def page_columns(self) -> int:
        """Columns of the page table buffer."""
        return self.width // self.page if self.max_pages is None else self.max_pages

    def but(self, **changes: Any) -> Case:
        """This round with some of it changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Row:
    """What decides every output of one row."""

    length: int
    slot: int
    prefix: int


INERT = Row(length=1, slot=0, prefix=0)


@dataclass(frozen=True)
class Expected:
    """The outputs of one step. `live[i]` are the page table entries that row i must hold."""

    values: dict[str, list[int] | list[list[int]]]
    live: list[list[int]]


@dataclass(frozen=True)
class Outcome:
    """The outputs of every step, or none at all where nothing may be written, and the status word."""

    steps: list[Expected] = field(default_factory=list)
    status: int = 0

    @property
    def written(self) -> bool:
        return bool(self.steps)


def refresh(case: Case) -> Outcome:
    """What one refresh must leave in every step's buffers, and the status bits that it must raise."""
    if len(case.seq_lens) == 0:
        return Outcome()
    steps: list[Expected] = []
    status = 0
    for offset in case.offsets:
        rows, bits = row_layout(case, offset)
        steps.append(outputs(case, rows))
        status |= bits
    return Outcome(steps, status)


def row_layout(case: Case, offset: int) -> tuple[list[Row], int]:
    """Every row of the bucket and the status bits."""
    wanted, status = _wanted_rows(case, offset)
    if len(wanted) > case.rows:
        raise ValueError(f"{len(wanted)} rows for a bucket of {case.rows}")
    rows = []
    for row in wanted:
        fault = 0 if row is None else _fault(case, row)
        status |= fault
        rows.append(INERT if row is None or fault else row)
    return rows + [INERT] * (case.rows - len(rows)), status


def _wanted_rows(case: Case, offset: int) -> tuple[list[Row | None], int]:
    """Rows as the inputs ask for them; None for a row of a padding request."""
    real = _real_requests(case)
    requests = list(zip(case.seq_lens, case.slots, real, strict=True))
    if case.mode == "decode":
        return [Row(n + offset, r, n + offset - 1) if ok else None for n, r, ok in requests], 0
    if case.mode == "target_verify":
        window = case.draft_token_num
        if window is None:
            raise ValueError("target_verify needs draft_token_num")
        return [Row(n + j + 1, r, max(n, 0)) if ok else None for n, r, ok in requests for j in range(window)], 0
    if case.mode == "draft_extend":
        return _packed_rows(case, requests)
    raise ValueError(f"unknown mode {case.mode!r}")


def _packed_rows(case: Case, requests: list[tuple[int, int, bool]]) -> tuple[list[Row | None], int]:
    if case.extend_lens is None:
        raise ValueError("draft_extend needs extend_lens")
    rows: list[Row | None] = []
    status = 0
    for (length, slot, real), extend in zip(requests, case.extend_lens, strict=True):
        if not real:
            continue
        if extend < 0:
            status |= EXTEND_LENGTH_NEGATIVE
            continue
        room = case.rows - len(rows)
        if extend > room:
            status |= ROWS_EXCEED_BUCKET
        prefix = max(length - extend, 0)
        rows += [Row(min(prefix + 1 + j, length), slot, prefix) for j in range(min(extend, room))]
    return rows, status


def _real_requests(case: Case) -> list[bool]:
    batch = len(case.seq_lens)
    counted = min(max(case.num_padding, 0), batch)
    by_count = [q < batch - counted for q in range(batch)]
    if case.padding == "count":
        return by_count
    if case.padding == "slot":
        return [ok and slot != 0 for ok, slot in zip(by_count, case.slots, strict=True)]
    raise ValueError(f"unknown padding {case.padding!r}")


def _fault(case: Case, row: Row) -> int:
    """The one bit that says why a row cannot be served, or 0."""
    slots, width = case.table.shape
    if not 0 <= row.slot < slots:
        return SLOT_OUT_OF_TABLE
    if row.length <= 0:
        return LENGTH_NOT_POSITIVE
    if row.length > width:
        return LENGTH_EXCEEDS_TABLE
    return 0


def outputs(case: Case, rows: Sequence[Row]) -> Expected:
    """The nine outputs of rows that can be served."""
    ratio, page, ring = case.ratio, case.page, case.ring_size
    values: dict[str, list[Any]] = {name: [] for name in FIELDS if name != "page_table"}
    live: list[list[int]] = []
    for row in rows:
        n, r, pos = row.length, row.slot, row.length - 1
        entry = max(int(case.table[r, pos]), 0)
        values["sequence_lengths"].append(n)
        values["row_req_pool_indices"].append(r)
        values["prefix_lengths"].append(row.prefix)
        values["compressed_lengths"].append(n // ratio)
        values["write_locs"].append(entry // ratio if n % ratio == 0 else 0)
        values["logical_positions"].append(pos)
        values["pending_ring_slots"].append(r * ring + pos % ring)
        values["ring_group_locs"].append([r * ring + max(pos - (ratio - 1 - k), 0) % ring for k in range(ratio)])
        pages = min(-(-n // page), case.page_columns, case.width // page)
        live.append([max(int(case.table[r, p * page]) // page, 0) for p in range(pages)])
    return Expected(values, live)
