"""Poisoned buffers between guards, so that every wrong write of a refresh is seen."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from qsa_group import FIELDS

__all__ = ["GUARD", "POISON", "Arena", "Difference", "Gaps"]

GUARD = 64
"""Elements on each side of a buffer that no refresh may write."""

POISON = -1_414_812_757
"""What an int32 element holds before a refresh. An int64 element holds this value twice."""

_POISON_PAIR = POISON << 32 | POISON & 0xFFFFFFFF


class Gaps(NamedTuple):
    """Where buffers leave elements out.

    Attributes:
        page: elements between two rows of the page table.
        ring: elements between two rows of the ring groups.
        shift: elements that every buffer is moved off its alignment.
    """

    page: int = 0
    ring: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first wrong entry of an arena: of the first wrong step, its first wrong row, there the first wrong field.

    Attributes:
        step: number of the step.
        row: number of the row; outside 0..rows where a guard was written.
        field: name of the buffer.
        place: the entry in words.
        expected: what must stand there.
        found: what stands there.
        count: wrong entries of the whole arena.
    """

    step: int
    row: int
    field: str
    place: str
    expected: int
    found: int
    count: int

    def __str__(self) -> str:
        """One line."""
        if self.found in (POISON, _POISON_PAIR):
            note = ", it was not written"
        elif self.expected in (POISON, _POISON_PAIR):
            note = ", it had to be left alone"
        else:
            note = ""
        return f"{self.place} is {self.found}, expected {self.expected}{note} ({self.count} wrong in all)"


class Arena:
    """The buffers of all steps of a pass, in one allocation on one device.

    Every buffer has a guard before and behind it. Poison fills buffers and guards until something is written. A write
    outside the buffers, or to an entry that a refresh must leave alone, is therefore a difference.

    Attributes:
        steps: number of steps.
        rows: rows of each step.
        fields: names of the buffers, in the order of ``FIELDS``.
        gaps: elements between rows.
        memory: the whole allocation, int64.
        blocks: each field's buffers with their guards, [steps, elements].
    """

    def __init__(
        self,
        steps: int,
        rows: int,
        compress_ratio: int,
        max_pages: int,
        device: str | torch.device = "cpu",
        *,
        fields: Iterable[str] = FIELDS,
        gaps: Gaps = Gaps(),  # noqa: B008 (it cannot be changed)
    ) -> None:
        """Allocates and poisons.

        Args:
            steps: number of steps.
            rows: rows of each step.
            compress_ratio: columns of the ring groups.
            max_pages: columns of the page tables.
            device: where the buffers are.
            fields: names of the buffers; the others are absent.
            gaps: elements between rows.
        """
        self.steps, self.rows, self.gaps = steps, rows, gaps
        self.fields = tuple(name for name in FIELDS if name in set(fields))
        self._columns = {"ring_group_locs": compress_ratio, "page_table": max_pages}
        self.memory = torch.empty(sum(map(self._words, self.fields)), dtype=torch.int64, device=device)
        self._cut()
        self.poison()

    def poison(self) -> None:
        """Poison everywhere."""
        self.memory.fill_(_POISON_PAIR)

    def fresh(self) -> Arena:
        """A poisoned arena of the same form."""
        other = copy.copy(self)
        other.memory = torch.empty_like(self.memory)
        other._cut()
        other.poison()
        return other

    def region(self, field: str) -> torch.Tensor:
        """The buffers of a field: [steps, rows] or [steps, rows, columns]."""
        return self._regions[field]

    def step(self, step: int) -> dict[str, torch.Tensor]:
        """The buffers of a step by field."""
        return {name: region[step] for name, region in self._regions.items()}

    def difference(self, expected: Arena) -> Difference | None:
        """The first entry that differs from an arena of the same form, or None. Waits for the device."""
        if torch.equal(self.memory, expected.memory):
            return None
        differences = [wrong for name in self.fields if (wrong := self._first_of(name, expected)) is not None]
        first = min(differences, key=lambda difference: (difference.step, difference.row))
        return replace(first, count=sum(difference.count for difference in differences))

    def _first_of(self, field: str, expected: Arena) -> Difference | None:
        mine, other = self.blocks[field].cpu(), expected.blocks[field].cpu()
        wrong = (mine != other).nonzero()
        if not len(wrong):
            return None
        step, element = wrong[0].tolist()
        start = element - GUARD - self.gaps.shift
        row, column = divmod(start, max(self._stride(field), 1))
        if not 0 <= row < self.rows or column >= self._columns.get(field, 1):
            place = f"{start} elements from the start of {field}, outside of its rows,"
        else:
            place = f"{field}[{row}, {column}]" if field in self._columns else f"{field}[{row}]"
        values = int(other[step, element]), int(mine[step, element])
        return Difference(step, row, field, f"step {step}: {place}", *values, len(wrong))

    def _stride(self, field: str) -> int:
        """Elements from one row to the next."""
        gap = {"ring_group_locs": self.gaps.ring, "page_table": self.gaps.page}.get(field, 0)
        return self._columns.get(field, 1) + gap

    def _elements(self, field: str) -> int:
        """Elements of one step's buffer and its guards; every step starts on a boundary of 16 bytes."""
        elements = 2 * GUARD + self.gaps.shift + self.rows * self._stride(field)
        return -(-elements // 4) * 4

    def _words(self, field: str) -> int:
        """int64 words of all steps of a field."""
        return self.steps * self._elements(field) // (1 if field == "pending_ring_slots" else 2)

    def _cut(self) -> None:
        """Cuts the buffers out of the memory."""
        self.blocks: dict[str, torch.Tensor] = {}
        self._regions: dict[str, torch.Tensor] = {}
        start = 0
        for name in self.fields:
            part = self.memory[start : start + self._words(name)]
            start += len(part)
            part = part if name == "pending_ring_slots" else part.view(torch.int32)
            block = part.view(self.steps, self._elements(name))
            sizes, strides = [self.steps, self.rows], [block.stride(0), self._stride(name)]
            if name in self._columns:
                sizes, strides = [*sizes, self._columns[name]], [*strides, 1]
            first = block.storage_offset() + GUARD + self.gaps.shift
            self.blocks[name], self._regions[name] = block, block.as_strided(sizes, strides, first)
