"""The demo's poisoned buffers, judged by the plain oracle; and live inputs among numbers that must not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helpers.oracle import Outcome
from qsa_group.demo import arena
from qsa_group.demo.arena import GUARD, POISON, Difference, Gaps

__all__ = ["GUARD", "POISON", "Arena", "Difference", "shaped"]


class Arena(arena.Arena):
    """The demo's arena, which the oracle's outcomes can be written to and compared with."""

    def __init__(self, *sizes: Any, page_gap: int = 0, ring_gap: int = 0, shift: int = 0, **options: Any) -> None:
        super().__init__(*sizes, gaps=Gaps(page_gap, ring_gap, shift), **options)
        self.page_gap, self.ring_gap = page_gap, ring_gap

    def write(self, outcome: Outcome) -> None:
        """Puts what the oracle expects into the buffers; page table entries that are not live stay as they are."""
        for step, expected in enumerate(outcome.steps):
            for name, target in self.step(step).items():
                if name == "page_table":
                    for row, live in enumerate(expected.live):
                        target[row, : len(live)] = torch.tensor(live, dtype=target.dtype)
                else:
                    values = torch.tensor(expected.values[name], dtype=target.dtype)
                    target[: len(values)].copy_(values.view(-1, *target.shape[1:]))

    def assert_holds(self, outcome: Outcome) -> None:
        """Fails at the first element that differs from a poisoned arena plus `outcome`."""
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
