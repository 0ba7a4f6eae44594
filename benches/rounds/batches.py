"""Live batches of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["Batch", "grown"]


@dataclass(frozen=True)
class Batch:
    """The live batch of a round.

    Attributes:
        seq_lens: length of each request before the draft; in draft extend, after it.
        slots: request slot of each request.
        extend_lens: accepted rows of each request.
    """

    seq_lens: Sequence[int]
    slots: Sequence[int]
    extend_lens: Sequence[int]

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Lengths, slots and accepted rows, with the dtypes of SGLang's batches."""

        def tensor(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return (
            tensor(self.seq_lens, torch.int64),
            tensor(self.slots, torch.int64),
            tensor(self.extend_lens, torch.int32),
        )


def grown(batch: Batch) -> Batch:
    """The batch of draft extend, whose lengths include the accepted rows."""
    lengths = [length + extend for length, extend in zip(batch.seq_lens, batch.extend_lens, strict=True)]
    return Batch(lengths, batch.slots, batch.extend_lens)
