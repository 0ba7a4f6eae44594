"""The contract of docs/semantics.md in torch operators: it writes what a refresh must leave behind.

The reference shares no code with the Rust executor or the Triton kernel. It runs on the device of the request table,
and copies nothing to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from qsa_group import ReplayStatus

from .arena import Arena

__all__ = ["Layout", "LiveInputs", "refresh", "status"]

_FAR = 1 << 40
"""Past every length that can be served. Lengths are limited to this number, so that no sum overflows."""


@dataclass(frozen=True, slots=True)
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
    """

    table: torch.Tensor
    compress_ratio: int
    page_size: int
    rows: int
    mode: str = "decode"
    offsets: Sequence[int] = (1,)
    draft_token_num: int = 1
    padding: str = "count"


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
    served = rows.asked & (rows.slot >= 0) & (rows.slot < slots) & (rows.length > 0) & (rows.length <= width)
    length, slot, prefix = (
        torch.where(served, value, inert) for value, inert in ((rows.length, 1), (rows.slot, 0), (rows.prefix, 0))
    )
    _write_vectors(layout, arena, length, slot, prefix)
    if "page_table" in arena.fields and layout.rows:
        _write_pages(layout, arena, length, slot)


def status(layout: Layout, live: LiveInputs) -> torch.Tensor:
    """The status bits that a refresh must raise: one int64 on the table's device. A row raises one bit at most."""
    device = layout.table.device
    faults = {}
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
        faults[ReplayStatus.ROWS_EXCEED_BUCKET] = _extends(layout, live).sum() > layout.rows
        faults[ReplayStatus.EXTEND_LENGTH_NEGATIVE] = _real(layout, live) & (live.extend_lens < 0)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    return sum((int(bit) * fault.any() for bit, fault in faults.items()), zero)


def _rows(layout: Layout, live: LiveInputs) -> _Rows:
    return _packed_rows(layout, live) if layout.mode == "draft_extend" else _fixed_rows(layout, live)


def _real(layout: Layout, live: LiveInputs) -> torch.Tensor:
    """Which requests are no padding, bool [batch]."""
    batch = len(live.seq_lens)
    count = batch - min(max(live.num_padding, 0), batch)
    real = torch.arange(batch, device=layout.table.device) < count
    return real & (live.req_pool_indices != 0) if layout.padding == "slot" else real


def _fixed_rows(layout: Layout, live: LiveInputs) -> _Rows:
    """Decode and target verify: every request has the same number of rows."""
    verify = layout.mode == "target_verify"
    window = layout.draft_token_num if verify else 1
    device, batch = layout.table.device, len(live.seq_lens)
    row = torch.arange(layout.rows, device=device)
    request = (row // window).clamp(max=batch - 1)
    asked = (row < batch * window) & _real(layout, live)[request]
    before = live.seq_lens.clamp(-_FAR, _FAR)[request]
    if verify:
        length, prefix = (before + row % window + 1)[None], before.clamp(min=0)[None]
    else:
        length = before + torch.tensor(layout.offsets, device=device)[:, None]
        prefix = length - 1
    return _Rows(length, live.req_pool_indices[request].expand(length.shape), prefix, asked.expand(length.shape))


def _extends(layout: Layout, live: LiveInputs) -> torch.Tensor:
    """Rows of each request, [batch]: one more than the bucket has where a request asks for too many."""
    assert live.extend_lens is not None, "draft extend needs extend_lens"
    # So many are enough to tell that rows do not fit, and keep the sum of all requests small.
    return torch.where(_real(layout, live), live.extend_lens, 0).clamp(0, layout.rows + 1)


def _packed_rows(layout: Layout, live: LiveInputs) -> _Rows:
    """Draft extend: requests pack their rows in order."""
    extends = _extends(layout, live)
    assert live.extend_lens is not None
    ends = extends.cumsum(0)
    row = torch.arange(layout.rows, device=layout.table.device)
    request = torch.searchsorted(ends, row, right=True).clamp(max=len(ends) - 1)
    within = row - (ends - extends)[request]
    before = live.seq_lens.clamp(min=0) - live.extend_lens.clamp(min=0)
    prefix = before.clamp(0, _FAR)[request]
    length = torch.minimum(prefix + 1 + within, live.seq_lens[request])
    slot = live.req_pool_indices[request]
    return _Rows(length[None], slot[None], prefix[None], (row < ends[-1])[None])


def _write_vectors(
    layout: Layout, arena: Arena, length: torch.Tensor, slot: torch.Tensor, prefix: torch.Tensor
) -> None:
    """All buffers but the page table."""
    ratio = layout.compress_ratio
    position = length - 1

    def write_locs() -> torch.Tensor:
        group = layout.table[slot, position].clamp(min=0) // ratio
        return torch.where(length % ratio == 0, group, 0)

    def ring_group_locs() -> torch.Tensor:
        back = torch.arange(1 - ratio, 1, device=layout.table.device)
        return slot[..., None] * ratio + (position[..., None] + back).clamp(min=0) % ratio

    values: dict[str, Callable[[], torch.Tensor]] = {
        "sequence_lengths": lambda: length,
        "row_req_pool_indices": lambda: slot,
        "prefix_lengths": lambda: prefix,
        "compressed_lengths": lambda: length // ratio,
        "write_locs": write_locs,
        "logical_positions": lambda: position,
        "pending_ring_slots": lambda: slot * ratio + position % ratio,
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
    ids = (table[:, : columns * page : page].clamp(min=0) // page)[slot]
    column = torch.arange(columns, device=table.device)
    target = target[..., :columns]
    target.copy_(torch.where(column < live[..., None], ids, target))
