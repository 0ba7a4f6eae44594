"""Refreshes on the CPU for tensors that are elsewhere: copies in, a refresh of the copies, copies out."""

from __future__ import annotations

from functools import partial

import torch

import qsa_group._core as _core
from qsa_group.buffers import RequestTable, StepBuffers

from .backend import PlanInputs
from .cuda import is_capturing

__all__ = ["staged_launcher"]


def staged_launcher(inputs: PlanInputs) -> _core.StagedLauncher:
    """A launcher with a mirror of the table and of every buffer on the host."""
    table = inputs.table
    host_table = RequestTable(
        _on_host(table.req_to_token),
        compress_ratio=table.compress_ratio,
        page_size=table.page_size,
        ring_size=table.ring_size,
    )
    host_steps = tuple(
        StepBuffers(step.offset, **{name: _on_host(buffer) for name, buffer in step.present().items()})
        for step in inputs.steps
    )
    # Only the layouts count. The launcher takes each group's mode and padding rule from the plan's own blueprint.
    host_blueprint = _core.Blueprint(host_table, "decode", None, "count", host_steps)
    return _core.StagedLauncher(
        (inputs.blueprint, table, inputs.steps),
        (host_blueprint, host_table, host_steps),
        inputs.status_word,
        partial(is_capturing, table.device),
    )


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    # Whatever default device the caller has set. Inference mode's tensors could not be written outside of it.
    with torch.inference_mode(False):
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
