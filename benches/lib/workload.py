"""The request table, the step buffers and the live inputs that benches refresh."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .timing import LiveSet

__all__ = ["MAX_BATCH", "MAX_STEPS", "PAGE_SIZE", "RATIO", "Tensors", "Workload"]

RATIO = 4
PAGE_SIZE = 64
MAX_BATCH = 512
MAX_STEPS = 7

Tensors = dict[str, torch.Tensor]
"""The buffers of one step by name."""


class Workload:
    """Request table, step buffers and live inputs of any grid point, in memory that the points share.

    Args:
        fields: names of the buffers that each step has, as `qsa_group.FIELDS`.
        device: device of all tensors.
        max_batch: requests of the largest batch.
        max_steps: steps of the largest plan.

    Attributes:
        context: tokens of a slot of the table; 0 before `set_context`.
        table: the request table, [max_batch + 1, context] int32.
    """

    def __init__(
        self,
        fields: Sequence[str],
        device: str = "cuda",
        *,
        max_batch: int = MAX_BATCH,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.fields = tuple(fields)
        self.device = torch.device(device)
        self.max_batch = max_batch
        self.max_steps = max_steps
        self.context = 0
        self.table = torch.empty(0, dtype=torch.int32, device=self.device)
        self._memory: dict[tuple[int, str], torch.Tensor] = {}
        self._pool = torch.empty(0, dtype=torch.int32, device=self.device)

    def set_context(self, context: int) -> torch.Tensor:
        """Makes the table of `max_batch + 1` slots hold random pages for a context limit. Slot 0 is reserved."""
        if context == self.context:
            return self.table
        slots = self.max_batch + 1
        if self._pool.numel() < slots * context:
            # The old pool is freed before the new one is allocated.
            self.table = self._pool = torch.empty(0, dtype=torch.int32, device=self.device)
            self._pool = torch.empty(slots * context, dtype=torch.int32, device=self.device)
        self.table = self._pool[: slots * context].view(slots, context)
        generator = torch.Generator(self.device).manual_seed(context)
        pages = torch.randint(
            1, 1 << 24, (slots, context // PAGE_SIZE), dtype=torch.int32, device=self.device, generator=generator
        )
        offsets = torch.arange(PAGE_SIZE, dtype=torch.int32, device=self.device)
        view = self.table.view(slots, context // PAGE_SIZE, PAGE_SIZE)
        view.copy_(pages[:, :, None] * PAGE_SIZE)
        view.add_(offsets)
        self.table[0].zero_()
        self.context = context
        return self.table

    def buffers(self, rows: int, step: int) -> Tensors:
        """One step's buffers, with a page table as wide as the context limit."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self.fields, (rows,))
        shapes["ring_group_locs"] = (rows, RATIO)
        shapes["page_table"] = (rows, self.context // PAGE_SIZE)
        return {name: self._take(step, name, shape) for name, shape in shapes.items()}

    def live(
        self, batch: int, live: int, *, room: int, sets: int = 4, dtype: torch.dtype = torch.int64
    ) -> list[LiveSet]:
        """Input sets (seq_lens, req_pool_indices), each [batch].

        Lengths are near `live`, and leave `room` tokens to the context limit. Slots are drawn without repetition.
        """
        generator = torch.Generator().manual_seed(batch * 7919 + live)
        highest = min(live, self.context - room)
        inputs: list[LiveSet] = []
        for _ in range(sets):
            jitter = torch.randint(0, max(highest // 16, 1), (batch,), generator=generator)
            slots = torch.randperm(self.max_batch, generator=generator)[:batch] + 1
            inputs.append(((highest - jitter).to(self.device, dtype), slots.to(self.device, dtype)))
        return inputs

    def _take(self, step: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        count = math.prod(shape)
        memory = self._memory.get((step, name))
        if memory is None or memory.numel() < count:
            dtype = torch.int64 if name == "pending_ring_slots" else torch.int32
            memory = self._memory[step, name] = torch.zeros(count, dtype=dtype, device=self.device)
        return memory[:count].view(shape)
