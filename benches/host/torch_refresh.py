"""The refresh of the host backend, written with torch operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lib.timing import LiveSet
from lib.workload import PAGE_SIZE, RATIO, Tensors

__all__ = ["Refresh", "TorchRefresh", "check_equal"]

PAGE_SHIFT = PAGE_SIZE.bit_length() - 1

Refresh = Callable[..., Any]


class TorchRefresh:
    """Decode-mode refresh of several steps with torch operators.

    Views, constants and scratch are made once.

    Args:
        table: the request table, [slots, width] int32.
        steps: the buffers of each step. All have as many rows.
    """

    def __init__(self, table: torch.Tensor, steps: Sequence[Tensors]) -> None:
        rows = steps[0]["sequence_lengths"].numel()
        self.steps = steps
        self.slots, self.width = table.shape
        self.entries = table.view(-1)
        self.page_starts = table[:, ::PAGE_SIZE]
        self.back = torch.arange(RATIO - 1, -1, -1)
        self.row = torch.arange(rows)
        self.n, self.r, self.pos, self.rest, self.ring, self.index = torch.empty(6, rows, dtype=torch.int64)
        self.loc = torch.empty(rows, dtype=torch.int32)
        self.group = torch.empty(rows, RATIO, dtype=torch.int64)
        self.one, self.zero = torch.tensor(1), torch.tensor(0)
        self.no_loc = torch.tensor(0, dtype=torch.int32)

    def __call__(self, seq_lens: torch.Tensor, slots: torch.Tensor, num_padding: int = 0) -> None:
        """Refreshes every step.

        Args:
            seq_lens: [rows] int64.
            slots: [rows] int64.
            num_padding: the last so many requests are padding.
        """
        known = (self.row < self.row.numel() - num_padding) & (slots >= 0) & (slots < self.slots)
        for step, out in enumerate(self.steps):
            self._refresh(out, seq_lens, slots, known, step + 1)

    def _refresh(
        self, out: Tensors, seq_lens: torch.Tensor, slots: torch.Tensor, known: torch.Tensor, offset: int
    ) -> None:
        n, r, pos, rest, ring, index = self.n, self.r, self.pos, self.rest, self.ring, self.index
        torch.add(seq_lens, offset, out=n)
        served = known & (n > 0) & (n <= self.width)
        torch.where(served, n, self.one, out=n)
        torch.where(served, slots, self.zero, out=r)
        torch.sub(n, 1, out=pos)
        torch.remainder(n, RATIO, out=rest)
        torch.mul(r, RATIO, out=ring)

        out["sequence_lengths"].copy_(n)
        out["row_req_pool_indices"].copy_(r)
        out["prefix_lengths"].copy_(pos)
        out["logical_positions"].copy_(pos)
        torch.floor_divide(out["sequence_lengths"], RATIO, out=out["compressed_lengths"])
        torch.remainder(pos, RATIO, out=index)
        torch.add(ring, index, out=out["pending_ring_slots"])

        torch.mul(r, self.width, out=index)
        torch.index_select(self.entries, 0, index.add_(pos), out=self.loc)
        torch.where(rest == 0, self.loc.clamp_(min=0).floor_divide_(RATIO), self.no_loc, out=out["write_locs"])

        torch.sub(pos[:, None], self.back, out=self.group)
        out["ring_group_locs"].copy_(self.group.clamp_(min=0).remainder_(RATIO).add_(ring[:, None]))

        # A shift: integer division is torch's slowest operator, and the page table is the one large tensor.
        pages = min(int(pos.max()) // PAGE_SIZE + 1, self.page_starts.shape[1])
        starts = self.page_starts[:, :pages].index_select(0, r)
        torch.bitwise_right_shift(starts.clamp_(min=0), PAGE_SHIFT, out=out["page_table"][:, :pages])


def check_equal(
    ours: Refresh, by_torch: Refresh, our_steps: Sequence[Tensors], torch_steps: Sequence[Tensors], live: LiveSet
) -> None:
    """Runs both on the same inputs, and raises where they differ. Page tables count up to the row's last live page.

    Raises:
        AssertionError: a buffer differs.
    """
    for buffers in (*our_steps, *torch_steps):
        for tensor in buffers.values():
            tensor.fill_(-1)
    ours(*live)
    by_torch(*live)
    for step, (buffers, expected) in enumerate(zip(our_steps, torch_steps, strict=True)):
        last_page = buffers["logical_positions"].clamp(min=0)[:, None] // PAGE_SIZE
        for name, tensor in buffers.items():
            same = tensor == expected[name]
            if name == "page_table":
                same |= torch.arange(tensor.shape[1]) > last_page
            if not bool(same.all()):
                raise AssertionError(f"step {step}: {name} differs at {(~same).nonzero()[0].tolist()}")
