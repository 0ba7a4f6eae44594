"""The contract of docs/semantics.md in torch operators: it writes what a refresh must leave behind.

The reference shares no code with the Rust executor or the Triton kernel. It runs on the device of the request table,
and copies nothing to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from qsa_group import ReplayStatus

from .arena import Arena

__all__ = ["Layout", "LiveInputs", "refresh", "status"]

_FAR = 1 << 40
"""Past every length that can be served. Lengths are limited to this number, so that no sum overflows."""


@dataclass(frozen=True)
class Layout:
    """What a plan fixes.

    Attributes:
        table: the request table, int32 [slots, width].
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page.
        rows: rows of the bucket.
        mode: "decode", "target_verify" or "draft_extend".
        offsets: what each step adds to a request's length; decode only, one step otherwise.
        draft_token_num: rows of a request; target verify only.
        padding: "count" or "slot".
        ring_size: entries of a request's pending ring; None for `compress_ratio`.
    """

    table: torch.Tensor
    compress_ratio: int
    page_size: int
    rows: int
    mode: str = "decode"
    offsets: Sequence[int] = (1,)
    draft_token_num: int = 1
    padding: str = "count"
    ring_size: int | None = None

    @cached_property
    def row(self) -> torch.Tensor:
        """The number of each row, [rows]."""
        return torch.arange(self.rows, device=self.table.device)

    @cached_property
    def request(self) -> torch.Tensor:
        """The request of each row, [rows]; not for draft extend."""
        return self.row // self.draft_token_num if self.mode == "target_verify" else self.row

    @cached_property
    def ahead(self) -> torch.Tensor:
        """What each row's length is past its request's, [steps, rows or 1]; not for draft extend."""
        if self.mode == "target_verify":
            return (self.row % self.draft_token_num + 1)[None]
        return torch.tensor(self.offsets, device=self.table.device)[:, None]

    @cached_property
    def back(self) -> torch.Tensor:
        """How far each member of a ring group is from its last, [compress_ratio]."""
        return torch.arange(1 - self.compress_ratio, 1, device=self.table.device)


@dataclass(frozen=True, slots=True)
class LiveInputs:
    """The live inputs of a refresh, on the table's device.

    Attributes:
        seq_lens: tokens of each request, int64 [batch].
        req_pool_indices: slot of each request, int64 [batch].
        num_padding: the last so many requests are padding.
        extend_lens: rows of each request, int64 [batch]; draft extend only.
    """

    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    num_padding: int = 0
    extend_lens: torch.Tensor | None = None

    @property
    def real(self) -> int:
        """Requests before those that ``num_padding`` counts."""
        batch = len(self.seq_lens)
        return batch - min(max(self.num_padding, 0), batch)


class _Rows(NamedTuple):
    """The rows of a bucket as requests ask for them, [steps, rows] each."""

    length: torch.Tensor
    slot: torch.Tensor
    prefix: torch.Tensor
    asked: torch.Tensor  # Whether a request asks for the row, bool.


def refresh(layout: Layout, live: LiveInputs, arena: Arena) -> None:
    """Writes what a refresh must write into a poisoned arena, and nothing else.

    Args:
        layout: what the plan fixes.
        live: the live inputs.
        arena: buffers of as many steps as ``layout.offsets``, and of ``layout.rows`` rows or more. Rows past those of
            the layout are left alone.
    """
    if not len(live.seq_lens):
        return
    rows = _rows(layout, live)
    slots, width = layout.table.shape
    unserved = ~rows.asked | (rows.slot.clamp(0, slots - 1) != rows.slot) | (rows.length.clamp(1, width) != rows.length)
    length, slot, prefix = (
        value.masked_fill(unserved, inert) for value, inert in ((rows.length, 1), (rows.slot, 0), (rows.prefix, 0))
    )
    _write_vectors(layout, arena, length, slot, prefix)
    if "page_table" in arena.fields and layout.rows:
        _write_pages(layout, arena, length, slot)


def status(layout: Layout, live: LiveInputs) -> torch.Tensor:
    """The status bits that a refresh must raise: one int64 on the table's device. A row raises one bit at most."""
    faults: dict[ReplayStatus, torch.Tensor] = {}
    if len(live.seq_lens):
        rows = _rows(layout, live)
        slots, width = layout.table.shape
        in_table = (rows.slot >= 0) & (rows.slot < slots)
        faults = {
            ReplayStatus.SLOT_OUT_OF_TABLE: rows.asked & ~in_table,
            ReplayStatus.LENGTH_NOT_POSITIVE: rows.asked & in_table & (rows.length <= 0),
            ReplayStatus.LENGTH_EXCEEDS_TABLE: rows.asked & in_table & (rows.length > width),
        }
    if live.extend_lens is not None:
        negative = (live.extend_lens < 0)[: live.real]
        if layout.padding == "slot":
            negative = negative & (live.req_pool_indices != 0)[: live.real]
        faults[ReplayStatus.EXTEND_LENGTH_NEGATIVE] = negative
        faults[ReplayStatus.ROWS_EXCEED_BUCKET] = _extends(layout, live).sum() > layout.rows
    zero = torch.zeros((), dtype=torch.int64, device=layout.table.device)
    return sum((int(bit) * fault.any() for bit, fault in faults.items()), zero)


def _rows(layout: Layout, live: LiveInputs) -> _Rows:
    return _packed_rows(layout, live) if layout.mode == "draft_extend" else _fixed_rows(layout, live)


def _fixed_rows(layout: Layout, live: LiveInputs) -> _Rows:
    """Decode and target verify: every request has the same number of rows."""
    request = layout.request.clamp(max=len(live.seq_lens) - 1)
    before, slot = live.seq_lens[request].clamp(-_FAR, _FAR), live.req_pool_indices[request]
    length = before + layout.ahead
    prefix = before.clamp(min=0)[None] if layout.mode == "target_verify" else length - 1
    asked = layout.request < live.real
    if layout.padding == "slot":
        asked = asked & (slot != 0)
    return _Rows(length, slot.expand_as(length), prefix, asked.expand_as(length))


def _extends(layout: Layout, live: LiveInputs) -> torch.Tensor:
    """Rows of each request, [batch]: one more than the bucket has where a request asks for too many."""
    assert live.extend_lens is not None, "draft extend needs extend_lens"
    # So many are enough to tell that rows do not fit, and keep the sum of all requests small.
    extends = live.extend_lens.clamp(0, layout.rows + 1)
    extends[live.real :] = 0
    return extends * (live.req_pool_indices != 0) if layout.padding == "slot" else extends


def _packed_rows(layout: Layout, live: LiveInputs) -> _Rows:
    """Draft extend: requests pack their rows in order."""
    extends = _extends(layout, live)
    assert live.extend_lens is not None
    ends = extends.cumsum(0)
    request = torch.searchsorted(ends, layout.row, right=True).clamp(max=len(ends) - 1)
    within = layout.row - (ends - extends)[request]
    # Where the difference overflows, the request has no rows, or a negative length.
    prefix = (live.seq_lens - live.extend_lens).clamp(min=0)[request]
    length = torch.minimum(prefix + 1 + within, live.seq_lens[request])
    slot = live.req_pool_indices[request]
    return _Rows(length[None], slot[None], prefix[None], (layout.row < ends[-1])[None])


def _write_vectors(
    layout: Layout, arena: Arena, length: torch.Tensor, slot: torch.Tensor, prefix: torch.Tensor
) -> None:
    """All buffers but the page table."""
    ratio, ring = layout.compress_ratio, layout.ring_size or layout.compress_ratio
    position = length - 1

    def write_locs() -> torch.Tensor:
        group = layout.table[slot, position].clamp(min=0) // ratio
        return group.masked_fill(length % ratio != 0, 0)

    def ring_group_locs() -> torch.Tensor:
        return slot[..., None] * ring + (position[..., None] + layout.back).clamp(min=0) % ring

    values: dict[str, Callable[[], torch.Tensor]] = {
        "sequence_lengths": lambda: length,
        "row_req_pool_indices": lambda: slot,
        "prefix_lengths": lambda: prefix,
        "compressed_lengths": lambda: length // ratio,
        "write_locs": write_locs,
        "logical_positions": lambda: position,
        "pending_ring_slots": lambda: slot * ring + position % ring,
        "ring_group_locs": ring_group_locs,
    }
    for name, value in values.items():
        if name in arena.fields:
            arena.region(name)[:, : layout.rows].copy_(value())


def _write_pages(layout: Layout, arena: Arena, length: torch.Tensor, slot: torch.Tensor) -> None:
    """The live entries of the page table."""
    table, page = layout.table, layout.page_size
    target = arena.region("page_table")[:, : layout.rows]
    live = (length + (page - 1)) // page
    columns = min(target.shape[-1], table.shape[1] // page)
    if table.device.type == "cpu":  # Where nothing has to be waited for, columns that no row reaches are left out.
        columns = min(columns, int(live.max()))
    ids = table[:, : columns * page : page][slot].clamp(min=0) // page
    target = target[..., :columns]
    target.copy_(torch.where(torch.arange(columns, device=table.device) < live[..., None], ids, target))
