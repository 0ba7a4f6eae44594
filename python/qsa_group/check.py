"""What a refresh must leave behind, computed with torch operators on the host, and the comparison with what it left.

This is the demo's own judge. It shares no code with the Rust executor nor with the Triton kernel. It covers rows that
can be served; rows of hostile inputs are the business of the test suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

__all__ = [
    "FIELDS",
    "SHARED_INDEX_FIELDS",
    "Arena",
    "Difference",
    "Rows",
    "decode_rows",
    "extend_rows",
    "verify_rows",
    "write_expected",
]

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
"""All buffers of a step."""

SHARED_INDEX_FIELDS = ("sequence_lengths", "row_req_pool_indices", "logical_positions")
"""What a draft step reads when the steps share the indices of the first pass and run no indexer."""

POISON = 0x7EADBEEF
_POISON_PAIR = POISON << 32 | POISON
_ALIGN = 64  # int64 words, 512 bytes
_GUARD = 8  # int64 words between two buffers


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one bucket.

    Attributes:
        lengths: length of each row, int64 [rows].
        prefixes: tokens before the pass, int64 [rows].
        slots: request slot, int64 [rows].
    """

    lengths: torch.Tensor
    prefixes: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def inert(cls, rows: int) -> Rows:
        """Rows that are all padding."""
        zeros = torch.zeros(rows, dtype=torch.int64)
        return cls(torch.ones(rows, dtype=torch.int64), zeros, zeros.clone())


def decode_rows(rows: int, lengths: torch.Tensor, slots: torch.Tensor, offset: int) -> Rows:
    """Draft step: one row a request, ``offset`` tokens on.

    Args:
        rows: rows of the bucket; those past the batch are inert.
        lengths: length of each real request, int64 [batch].
        slots: its request slot, int64 [batch].
        offset: the step's offset, 1 for the first step.
    """
    out = Rows.inert(rows)
    real = len(lengths)
    out.lengths[:real] = lengths + offset
    out.prefixes[:real] = lengths + (offset - 1)
    out.slots[:real] = slots
    return out


def verify_rows(rows: int, lengths: torch.Tensor, slots: torch.Tensor, draft_tokens: int) -> Rows:
    """Target verify: ``draft_tokens`` rows a request, each one token longer than the one before."""
    out = Rows.inert(rows)
    real = len(lengths) * draft_tokens
    out.lengths[:real] = (lengths[:, None] + torch.arange(1, draft_tokens + 1)).flatten()
    out.prefixes[:real] = lengths.repeat_interleave(draft_tokens)
    out.slots[:real] = slots.repeat_interleave(draft_tokens)
    return out


def extend_rows(rows: int, lengths: torch.Tensor, slots: torch.Tensor, extend: torch.Tensor) -> Rows:
    """Draft extend: the accepted rows of all requests, packed in order.

    Args:
        rows: rows of the bucket.
        lengths: length of each real request, the extension included, int64 [batch].
        slots: its request slot, int64 [batch].
        extend: accepted rows of each request, int64 [batch].
    """
    out = Rows.inert(rows)
    real = int(extend.sum())
    first = (extend.cumsum(0) - extend).repeat_interleave(extend)
    within = torch.arange(real) - first
    prefixes = (lengths - extend).clamp_min(0).repeat_interleave(extend)
    out.lengths[:real] = torch.minimum(prefixes + 1 + within, lengths.repeat_interleave(extend))
    out.prefixes[:real] = prefixes
    out.slots[:real] = slots.repeat_interleave(extend)
    return out


def write_expected(
    buffers: Mapping[str, torch.Tensor], rows: Rows, table: torch.Tensor, compress_ratio: int, page_size: int
) -> None:
    """Writes what a refresh must write, and nothing else.

    Args:
        buffers: host tensors by buffer name, of as many rows as ``rows``; some may be missing.
        rows: the rows.
        table: the request table, int32 [slots, width] on the host.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page.
    """
    lengths, slots = rows.lengths, rows.slots
    positions = lengths - 1
    values = {
        "sequence_lengths": lengths,
        "row_req_pool_indices": slots,
        "prefix_lengths": rows.prefixes,
        "logical_positions": positions,
    }
    if "compressed_lengths" in buffers:
        values["compressed_lengths"] = lengths // compress_ratio
    if "write_locs" in buffers:
        groups = torch.div(table[slots, positions], compress_ratio, rounding_mode="floor").clamp_min(0)
        values["write_locs"] = torch.where(lengths % compress_ratio == 0, groups, 0)
    if "pending_ring_slots" in buffers:
        values["pending_ring_slots"] = slots * compress_ratio + positions % compress_ratio
    if "ring_group_locs" in buffers:
        back = torch.arange(compress_ratio - 1, -1, -1)
        ring = (positions[:, None] - back).clamp_min(0) % compress_ratio
        values["ring_group_locs"] = slots[:, None] * compress_ratio + ring
    for name, value in values.items():
        if name in buffers:
            buffers[name].copy_(value)
    if "page_table" in buffers:
        out = buffers["page_table"]
        live = (lengths + (page_size - 1)) // page_size
        columns = min(int(live.max()), out.shape[1], table.shape[1] // page_size)
        firsts = table[:, : columns * page_size : page_size][slots]
        pages = torch.div(firsts, page_size, rounding_mode="floor").clamp_min(0)
        is_live = torch.arange(columns) < live[:, None]
        out[:, :columns] = torch.where(is_live, pages, out[:, :columns])


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a refresh left something else than it must.

    Attributes:
        buffer: its name with the step, or "outside the buffers".
        index: the first wrong entry.
        expected: what must stand there.
        found: what stands there.
        count: wrong entries of this buffer.
    """

    buffer: str
    index: tuple[int, ...]
    expected: int
    found: int
    count: int

    def __str__(self) -> str:
        """One line."""
        index = ", ".join(map(str, self.index))
        return f"{self.buffer}[{index}] is {self.found}, expected {self.expected} ({self.count} wrong there)"


class Arena:
    """The buffers of all steps of a pass, each as large as the largest bucket needs, in one allocation.

    Between any two buffers lies a guard strip. All of it can be poisoned, and compared, at once; so a refresh that
    writes outside its buffers or outside the rows of its bucket is found too. A twin on the host holds what is
    expected.

    Attributes:
        steps: one mapping a step from buffer name to tensor on the device.
        expected: the same on the host.
    """

    def __init__(
        self, fields: Iterable[str], *, steps: int, rows: int, compress_ratio: int, max_pages: int, device: torch.device
    ) -> None:
        """Allocates the buffers ``fields`` of ``steps`` steps with ``rows`` rows each."""
        shapes = [
            {
                name: (rows, *{"ring_group_locs": (compress_ratio,), "page_table": (max_pages,)}.get(name, ()))
                for name in fields
            }
            for _ in range(steps)
        ]
        size = _ALIGN + sum(_words(name, shape)[1] for step in shapes for name, shape in step.items())
        self._memory = torch.empty(size, dtype=torch.int64, device=device)
        self._expected = torch.empty(size, dtype=torch.int64)
        self.steps = _carve(self._memory, shapes)
        self.expected = _carve(self._expected, shapes)

    def poison(self) -> None:
        """Fills the buffers, their guards and the expectation with a value that no refresh writes."""
        self._memory.fill_(_POISON_PAIR)
        self._expected.fill_(_POISON_PAIR)

    def differences(self) -> list[Difference]:
        """Compares all buffers with the expectation; waits for the device."""
        found = self._memory.cpu()
        if torch.equal(found, self._expected):
            return []
        shapes = [{name: tuple(buffer.shape) for name, buffer in step.items()} for step in self.expected]
        out = []
        for number, step in enumerate(_carve(found, shapes)):
            for name, buffer in step.items():
                wrong = (buffer != self.expected[number][name]).nonzero()
                if len(wrong):
                    index = tuple(wrong[0].tolist())
                    expected, value = int(self.expected[number][name][index]), int(buffer[index])
                    out.append(Difference(f"step {number} {name}", index, expected, value, len(wrong)))
                    buffer.copy_(self.expected[number][name])
        wrong = (found != self._expected).nonzero()
        if len(wrong):
            word = int(wrong[0])
            out.append(
                Difference("outside the buffers", (word,), int(self._expected[word]), int(found[word]), len(wrong))
            )
        return out


def _words(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """int64 words of a buffer, and with its guard and up to the next aligned place."""
    entries = 1
    for size in shape:
        entries *= size
    words = entries if name == "pending_ring_slots" else -(-entries // 2)
    return words, -(-(words + _GUARD) // _ALIGN) * _ALIGN


def _carve(memory: torch.Tensor, shapes: list[dict[str, tuple[int, ...]]]) -> list[dict[str, torch.Tensor]]:
    """Cuts the buffers out of ``memory``, an int64 tensor of one dimension."""
    start = _ALIGN
    out = []
    for step in shapes:
        buffers = {}
        for name, shape in step.items():
            words, span = _words(name, shape)
            part = memory[start : start + words]
            entries = torch.Size(shape).numel()
            part = part if name == "pending_ring_slots" else part.view(torch.int32)[:entries]
            buffers[name] = part.view(shape)
            start += span
        out.append(buffers)
    return out
