"""Poisoned output buffers that sit inside larger allocations, between sentinels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from helpers.oracle import FIELDS, Outcome

GUARD = 64
SENTINEL = -1_886_220_131
POISON = -1_414_812_757
_SENTINEL_PAIR = (SENTINEL << 32) | (SENTINEL & 0xFFFFFFFF)


def dtype_of(field: str) -> torch.dtype:
    """The dtype that the contract gives a buffer."""
    return torch.int64 if field == "pending_ring_slots" else torch.int32


class Arena:
    """The buffers of every step of a bucket in one allocation, 64 sentinels on each side of each buffer.

    `page_gap` and `ring_gap` elements lie between two rows of those buffers; `shift` moves every buffer off its
    alignment.
    """

    def __init__(
        self,
        steps: int,
        rows: int,
        ratio: int,
        page_columns: int,
        device: str | torch.device = "cpu",
        *,
        fields: Iterable[str] = FIELDS,
        page_gap: int = 0,
        ring_gap: int = 0,
        shift: int = 0,
    ) -> None:
        self.steps, self.rows, self.ratio, self.page_columns = steps, rows, ratio, page_columns
        self.page_gap, self.ring_gap, self.shift = page_gap, ring_gap, shift
        self.device = torch.device(device)
        self.fields = tuple(name for name in FIELDS if name in set(fields))
        lengths = {name: 2 * GUARD + shift + rows * self._row_stride(name) for name in self.fields}
        # In pairs of int32, each block on a boundary of 16 bytes.
        pairs = {name: steps * n if name == "pending_ring_slots" else -(-steps * n // 2) for name, n in lengths.items()}
        self.memory = torch.empty(sum(n + n % 2 for n in pairs.values()), dtype=torch.int64, device=device)
        self.blocks: dict[str, torch.Tensor] = {}
        start = 0
        for name in self.fields:
            part = self.memory[start : start + pairs[name]].view(dtype_of(name))
            self.blocks[name] = part[: steps * lengths[name]].view(steps, lengths[name])
            start += pairs[name] + pairs[name] % 2
        self.memory.fill_(_SENTINEL_PAIR)
        for name in self.fields:
            self.region(name).fill_(POISON)
        self._pristine = self.memory.clone()

    def _columns(self, field: str) -> int:
        return {"ring_group_locs": self.ratio, "page_table": self.page_columns}.get(field, 1)

    def _row_stride(self, field: str) -> int:
        return self._columns(field) + {"ring_group_locs": self.ring_gap, "page_table": self.page_gap}.get(field, 0)

    def region(self, field: str) -> torch.Tensor:
        """The buffers of a field: [steps, rows] or [steps, rows, columns]."""
        block = self.blocks[field]
        shape: tuple[int, ...] = (self.steps, self.rows)
        stride: tuple[int, ...] = (block.stride(0), self._row_stride(field))
        if field in ("ring_group_locs", "page_table"):
            shape, stride = (*shape, self._columns(field)), (*stride, 1)
        return block.as_strided(shape, stride, block.storage_offset() + GUARD + self.shift)

    def step(self, step: int) -> dict[str, torch.Tensor]:
        """The buffers of one step by name."""
        return {name: self.region(name)[step] for name in self.fields}

    def poison(self) -> None:
        """Poison in every buffer, sentinels everywhere else."""
        self.memory.copy_(self._pristine)

    def fresh(self) -> Arena:
        """A poisoned arena of the same form."""
        return Arena(
            self.steps,
            self.rows,
            self.ratio,
            self.page_columns,
            self.device,
            fields=self.fields,
            page_gap=self.page_gap,
            ring_gap=self.ring_gap,
            shift=self.shift,
        )

    def write(self, outcome: Outcome) -> None:
        """Puts what the oracle expects into the buffers; page table entries that are not live stay as they are."""
        for step, expected in enumerate(outcome.steps):
            for name in self.fields:
                target = self.region(name)[step]
                if name == "page_table":
                    for row, live in enumerate(expected.live):
                        target[row, : len(live)] = torch.tensor(live, dtype=target.dtype)
                else:
                    target.copy_(torch.tensor(expected.values[name], dtype=target.dtype).view(target.shape))

    def difference(self, wanted: Arena) -> str | None:
        """The first place where this arena does not hold what the other does, in words."""
        if torch.equal(self.memory, wanted.memory):
            return None
        for name in self.fields:
            if not torch.equal(self.blocks[name], wanted.blocks[name]):
                return self._first_difference(name, wanted)
        return "something was written between the allocations of two fields"

    def _first_difference(self, field: str, wanted: Arena) -> str:
        got_block, want_block = self.blocks[field].cpu(), wanted.blocks[field].cpu()
        step, at = (int(i) for i in (got_block != want_block).nonzero()[0])
        got, want = int(got_block[step, at]), int(want_block[step, at])
        row, column = divmod(at - GUARD - self.shift, self._row_stride(field))
        if 0 <= row < self.rows and column < self._columns(field):
            note = "; it was not written" if got == POISON else "; it had to be left alone" if want == POISON else ""
            index = f"{row}, {column}" if field in ("ring_group_locs", "page_table") else f"{row}"
            return f"step {step}: {field}[{index}] is {got}, wanted {want}{note}"
        return f"step {step}: {field} was written outside its buffer, {at - GUARD - self.shift} elements from its start"

    def assert_holds(self, outcome: Outcome) -> None:
        """Fails at the first element, sentinel or untouched entry that differs from a poisoned arena plus `outcome`."""
        wanted = self.fresh()
        wanted.write(outcome)
        difference = self.difference(wanted)
        assert difference is None, difference

    def assert_untouched(self) -> None:
        """Fails if anything was written since the last poisoning."""
        self.assert_holds(Outcome())


def shaped(
    values: Sequence[int], dtype: torch.dtype, device: str | torch.device = "cpu", form: str = "contiguous"
) -> torch.Tensor:
    """A vector of these values whose neighbours in memory hold numbers that must never be read."""
    count = len(values)
    garbage: dict[str, Any] = {"dtype": dtype, "device": device}
    if form == "contiguous":
        view = torch.full((count + 2 * GUARD,), -99, **garbage)[GUARD : GUARD + count]
    elif form == "shifted":
        view = torch.full((count + 2 * GUARD + 1,), -99, **garbage)[GUARD + 1 : GUARD + 1 + count]
    elif form == "strided":
        view = torch.full((3 * count + 2 * GUARD,), -99, **garbage)[GUARD : GUARD + 3 * count : 3]
    else:
        raise ValueError(f"unknown form {form!r}")
    view.copy_(torch.tensor(list(values), dtype=dtype))
    return view
