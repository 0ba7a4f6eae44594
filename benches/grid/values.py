"""Whether a refresh writes the values that SGLang's fused launch writes."""

from __future__ import annotations

import torch

from lib.workload import PAGE_SIZE, Tensors

from .point import PointCalls

__all__ = ["compare_values"]

_POISON = -7


def compare_values(point: PointCalls) -> None:
    """Compares every small buffer and the live page entries with SGLang's, bit by bit.

    Sets `values_equal` of the row, and its error `values`. Nothing is compared where one of the two is missing.
    """
    if "sglang_fused" not in point.sglang or "direct" not in point.plans:
        return
    _poison(point.steps)
    point.sglang["sglang_fused"](*point.inputs.sglang[0])
    expected = [{name: tensor.clone() for name, tensor in buffers.items()} for buffers in point.steps]
    _poison(point.steps)
    point.plans["direct"].run(*point.inputs.ours[0])
    pairs = enumerate(zip(point.steps, expected, strict=True))
    differences = [f"step {step} {name}" for step, (ours, theirs) in pairs for name in _differing(ours, theirs)]
    point.row["values_equal"] = not differences
    if differences:
        point.row["errors"]["values"] = ", ".join(differences)


def _poison(steps: list[Tensors]) -> None:
    for buffers in steps:
        for tensor in buffers.values():
            tensor.fill_(_POISON)


def _differing(ours: Tensors, theirs: Tensors) -> list[str]:
    """Names of the buffers of a step that differ. Page table entries past a row's length do not count."""
    used_pages = (theirs["sequence_lengths"].long() + PAGE_SIZE - 1) // PAGE_SIZE
    names = []
    for name, tensor in ours.items():
        same = tensor == theirs[name]
        if name == "page_table":
            pages = torch.arange(tensor.shape[1], device=tensor.device)
            same |= pages[None, :] >= used_pages[:, None]
        if not bool(same.all()):
            names.append(name)
    return names
