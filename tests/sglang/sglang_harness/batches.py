"""Live batches of a round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Batch:
    """The live batch of a round.

    Attributes:
        seq_lens: length of each request before the draft; in draft extend, after it.
        slots: request slot of each request.
        extend: accepted rows of each request.
    """

    seq_lens: Sequence[int]
    slots: Sequence[int]
    extend: Sequence[int] = ()

    def tensors(self, device: Any = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Lengths, slots and accepted rows, with the dtypes of SGLang's batches."""

        def tensor(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return tensor(self.seq_lens, torch.int64), tensor(self.slots, torch.int64), tensor(self.extend, torch.int32)


def grown(batch: Batch) -> Batch:
    """The batch of draft extend, whose lengths include the accepted rows."""
    lengths = [length + extend for length, extend in zip(batch.seq_lens, batch.extend, strict=True)]
    return Batch(lengths, batch.slots, batch.extend)


def random_batch(draw: random.Random, size: int, *, slots: int, width: int) -> Batch:
    """A batch of requests with slots of their own, and lengths that leave room for the round."""
    draft_tokens, accepted = 8, 4
    return Batch(
        [draw.randint(1, width - draft_tokens - accepted) for _ in range(size)],
        draw.sample(range(1, slots), size),
        [draw.randint(0, accepted) for _ in range(size)],
    )
