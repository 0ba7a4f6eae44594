"""Names of a step's buffers in SGLang's metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from .workload import RATIO, Tensors

__all__ = ["buffer", "metadata"]

_IN_INDEXER = {
    # This package's name: the field of `metadata.indexer_metadata`. Other buffers are fields of the metadata itself,
    # under this package's names.
    "prefix_lengths": "graph_prefix_lengths",
    "compressed_lengths": "graph_compressed_lengths",
    "write_locs": "graph_write_locs",
    "logical_positions": "decode_logical_positions",
    "pending_ring_slots": "pending_ring_slots",
    "ring_group_locs": "graph_ring_group_locs",
    "page_table": "graph_compressed_page_table",
}


def metadata(buffers: Tensors) -> SimpleNamespace:
    """A step's buffers under the names that SGLang's launchers read."""
    indexer = {theirs: buffers[ours] for ours, theirs in _IN_INDEXER.items()}
    others = {name: tensor for name, tensor in buffers.items() if name not in _IN_INDEXER}
    return SimpleNamespace(indexer_metadata=SimpleNamespace(compress_ratio=RATIO, **indexer), **others)


def buffer(step: Any, name: str) -> torch.Tensor:
    """One buffer of SGLang's metadata of a step, by this package's name."""
    field = _IN_INDEXER.get(name)
    tensor: torch.Tensor = getattr(step, name) if field is None else getattr(step.indexer_metadata, field)
    return tensor
