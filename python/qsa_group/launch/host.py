"""Refreshes on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import qsa_group._core as _core
from qsa_group.kernel import Grid

from .backend import Backend, PlanInputs, Prepared, Refusal
from .staged import staged_launcher

if TYPE_CHECKING:
    import torch

    from qsa_group.buffers import RequestTable

__all__ = ["HostBackend"]

_NO_GRID = Grid(programs=0, heads=0, page_bits=0)


class HostBackend(Backend):
    """Refreshes on the calling thread. Tensors that are elsewhere are staged through the host."""

    name = "host"

    def refusal(self, device: torch.device) -> Refusal | None:
        """None: the host serves tensors of any device."""
        del device
        return None

    def prepare(self, inputs: PlanInputs) -> Prepared:
        """See `Backend.prepare`."""
        grids = [_NO_GRID] * len(inputs.blueprint.groups)
        device = inputs.table.device
        if device.type == "cpu":
            return Prepared(_core.HostLauncher(inputs.blueprint, inputs.status_word), grids, self.name)
        fallback = f"tensors on {device} are staged through the host"
        return Prepared(staged_launcher(inputs), grids, self.name, (fallback,))

    def warmup(self, table: RequestTable, mode: str, num_steps: int, buffers: tuple[str, ...]) -> None:
        """Nothing is compiled for the host."""
