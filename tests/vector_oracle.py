"""The contract in torch operators, for many rounds on a device without a copy to the host.

Checked against the plain oracle in test_vector_oracle.py. Lengths and extend lengths must be far from the int64 limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers import oracle


@dataclass(frozen=True)
class Live:
    """The live inputs of a round, on the device; int64."""

    seq_lens: torch.Tensor
    slots: torch.Tensor
    num_padding: int = 0
    extend_lens: torch.Tensor | None = None


@dataclass(frozen=True)
class Shape:
    """What a plan fixes."""

    table: torch.Tensor
    ratio: int
    page: int
    rows: int
    max_pages: int
    mode: str = "decode"
    offsets: Sequence[int] = (1,)
    draft_token_num: int = 1
    padding: str = "count"


@dataclass(frozen=True)
class Wanted:
    """Every field as [steps, rows] or [steps, rows, columns]; `live` marks the page table entries that must hold."""

    values: dict[str, torch.Tensor]
    live: torch.Tensor
    status: torch.Tensor


def refresh(shape: Shape, inputs: Live) -> Wanted:
    """The outputs of a round; the batch must not be empty."""
    length, slot, prefix, asked, status = _rows(shape, inputs)
    slots, width = shape.table.shape
    bad_slot = asked & ((slot < 0) | (slot >= slots))
    bad_low = asked & ~bad_slot & (length <= 0)
    bad_high = asked & ~bad_slot & ~bad_low & (length > width)
    for bit, bad in (
        (oracle.SLOT_OUT_OF_TABLE, bad_slot),
        (oracle.LENGTH_NOT_POSITIVE, bad_low),
        (oracle.LENGTH_EXCEEDS_TABLE, bad_high),
    ):
        status = status + bit * bad.any()
    served = asked & ~bad_slot & ~bad_low & ~bad_high
    n = torch.where(served, length, 1)
    r = torch.where(served, slot, 0)
    prefix = torch.where(served, prefix, 0)
    return _outputs(shape, n, r, prefix, status)


def _rows(shape: Shape, inputs: Live) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Length, slot and prefix as asked for, which rows are asked for, and status bits; [steps, rows] each."""
    device = shape.table.device
    lens, slots = inputs.seq_lens, inputs.slots
    batch = lens.shape[0]
    real = torch.arange(batch, device=device) < batch - min(max(inputs.num_padding, 0), batch)
    if shape.padding == "slot":
        real = real & (slots != 0)
    row = torch.arange(shape.rows, device=device)
    status = torch.zeros((), dtype=torch.int64, device=device)
    if shape.mode == "draft_extend":
        assert inputs.extend_lens is not None
        status = status + oracle.EXTEND_LENGTH_NEGATIVE * (real & (inputs.extend_lens < 0)).any()
        extend = torch.where(real, inputs.extend_lens.clamp(min=0), 0)
        ends = extend.cumsum(0)
        status = status + oracle.ROWS_EXCEED_BUCKET * (ends[-1] > shape.rows)
        asked = row < ends[-1]
        q = torch.searchsorted(ends, row, right=True).clamp(max=batch - 1)
        prefix = (lens - extend).clamp(min=0)[q]
        length = torch.minimum(prefix + 1 + row - (ends - extend)[q], lens[q])
        return length[None], slots[q][None], prefix[None], asked[None], status
    window = shape.draft_token_num if shape.mode == "target_verify" else 1
    q = (row // window).clamp(max=batch - 1)
    asked = (row < batch * window) & real[q]
    if shape.mode == "target_verify":
        length = (lens[q] + row % window + 1)[None]
        prefix = lens[q].clamp(min=0)[None]
    else:
        length = lens[q][None] + torch.tensor(list(shape.offsets), device=device)[:, None]
        prefix = length - 1
    return length, slots[q].expand(length.shape), prefix, asked.expand(length.shape), status


def _outputs(shape: Shape, n: torch.Tensor, r: torch.Tensor, prefix: torch.Tensor, status: torch.Tensor) -> Wanted:
    device = shape.table.device
    ratio, page = shape.ratio, shape.page
    pos = n - 1
    entry = shape.table[r, pos].to(torch.int64).clamp(min=0)
    ring = torch.arange(ratio, device=device) - (ratio - 1)
    pages = min(shape.max_pages, shape.table.shape[1] // page)
    column = torch.arange(shape.max_pages, device=device)
    live = (column < pages) & (column < ((n + page - 1) // page)[..., None])
    first = (column * page).clamp(max=shape.table.shape[1] - 1)
    ids = torch.div(shape.table[r[..., None], first], page, rounding_mode="floor").clamp(min=0)
    values = {
        "sequence_lengths": n,
        "row_req_pool_indices": r,
        "prefix_lengths": prefix,
        "compressed_lengths": n // ratio,
        "write_locs": torch.where(n % ratio == 0, entry // ratio, 0),
        "logical_positions": pos,
        "pending_ring_slots": r * ratio + pos % ratio,
        "ring_group_locs": (r * ratio)[..., None] + (pos[..., None] + ring).clamp(min=0) % ratio,
        "page_table": ids,
    }
    return Wanted(values, live, status)
