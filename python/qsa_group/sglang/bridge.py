"""From SGLang's objects to this package's: request tables, step buffers, and the inputs that a graph may read."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from qsa_group.planner import RequestTable, StepBuffers

__all__ = [
    "ALL_BUFFERS",
    "SHARED_INDEX_BUFFERS",
    "Inputs",
    "buffer",
    "buffers_read",
    "fixed_inputs",
    "is_translating",
    "request_table",
    "step_buffers",
]

_PLACES = {
    # Buffer of a step: the field of QwenSparseAttnMetadata, or with a dot of its indexer_metadata.
    "sequence_lengths": "sequence_lengths",
    "row_req_pool_indices": "row_req_pool_indices",
    "prefix_lengths": ".graph_prefix_lengths",
    "compressed_lengths": ".graph_compressed_lengths",
    "write_locs": ".graph_write_locs",
    "logical_positions": ".decode_logical_positions",
    "pending_ring_slots": ".pending_ring_slots",
    "ring_group_locs": ".graph_ring_group_locs",
    "page_table": ".graph_compressed_page_table",
}

ALL_BUFFERS = tuple(_PLACES)
"""Every buffer that SGLang refreshes."""

SHARED_INDEX_BUFFERS = ("sequence_lengths", "row_req_pool_indices", "logical_positions")
"""What a draft graph reads when its steps share the indices of draft extend.

Read off the release: `models/qwen4_exp.py` then asks `should_reuse_mtp_sparse_indices` and runs no indexer, and the
indexer is the only reader of the other six. The core attention reads row lengths and request slots, the index look-up
and the block expansion read logical positions.
"""

_INPUT_BUFFERS = "sglang.srt.model_executor.input_buffers"


@dataclass(frozen=True)
class Inputs:
    """The tensors that a recorded refresh reads at every replay.

    Attributes:
        seq_lens: length of each request.
        req_pool_indices: request slot of each request.
        extend_lens: rows of each request, draft extend only.
    """

    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    extend_lens: torch.Tensor | None = None


def buffer(metadata: Any, name: str) -> torch.Tensor:
    """One buffer of a backend's graph metadata, by this package's name."""
    place = _PLACES[name]
    owner = metadata.indexer_metadata if place.startswith(".") else metadata
    tensor: torch.Tensor = getattr(owner, place.lstrip("."))
    return tensor


def step_buffers(metadata: Any, offset: int, names: Collection[str]) -> StepBuffers:
    """A backend's graph metadata as the buffers of one step."""
    return StepBuffers(offset, **{name: buffer(metadata, name) for name in names})


def request_table(backend: Any, metadata: Any) -> RequestTable:
    """The table that a backend's refresh reads, with the sizes of its pool, as SGLang's kernels take them."""
    pool = metadata.indexer_metadata.token_to_kv_pool
    ratio = int(pool.qsa_compress_ratio)
    return RequestTable(
        backend.req_to_token, compress_ratio=ratio, page_size=int(pool.qsa_compressed_page_size) * ratio
    )


def buffers_read(container: Any, forward_batch: Any) -> tuple[str, ...]:
    """What the graph that is about to be captured reads of each draft step.

    SGLang asks the very same method in the model's forward, so its answer at capture is what the graph will hold. A
    state that is set or taken away later does not change a captured graph.
    """
    children = container.attn_backends
    if all(child.should_reuse_mtp_sparse_indices(forward_batch) for child in children):
        return SHARED_INDEX_BUFFERS
    return ALL_BUFFERS


def is_translating(*owners: Any) -> bool:
    """Whether the request table holds virtual ids, of the pool or of any backend or runner named."""
    translators = (getattr(owner, "kv_index_translator", None) for owner in owners)
    return any(bool(getattr(translator, "is_translating", False)) for translator in translators)


def fixed_inputs(forward_batch: Any, batch_size: int, extend_lens: torch.Tensor | None) -> Inputs | None:
    """The batch's tensors, if a graph may read them at every replay; None where that is not known.

    A graph keeps addresses. That the live values stand at these addresses at every replay is a promise that SGLang
    makes for the tensors in its process-wide pool of input buffers (`model_executor/input_buffers.py`): its members
    "are filled immediately before each replay". The runners in 0.5.23 keep it as follows.

    - `EAGLEDraftCudaGraphRunner.execute` copies lengths and slots of the live batch into its buffers, and only then
      calls `init_forward_metadata_out_graph`. It hands over the live tensors themselves when the batch fills its
      bucket, and slices of the buffers when it does not; then it has zeroed the slots behind the batch first.
    - `EAGLEDraftExtendCudaGraphRunner.execute` does the same with lengths, slots and extend lengths, and always hands
      over the buffers.
    - `DecodeCudaGraphRunner.load_batch` fills its buffers through the registry, whose policy for `req_pool_indices` is
      to zero what is behind the batch, and hands over slices of them.

    Zeroed slots are what `padding="slot"` goes by. So a batch whose tensors are views of the pool's may be recorded,
    and any other runner is served by a launch before the replay.
    """
    pool: dict[Any, torch.Tensor] | None = getattr(sys.modules.get(_INPUT_BUFFERS), "_forward_input_buffer_pool", None)
    wanted = {"seq_lens": forward_batch.seq_lens, "req_pool_indices": forward_batch.req_pool_indices}
    if extend_lens is not None:
        wanted["extend_seq_lens"] = extend_lens
    if pool is None or not all(_pooled(pool, name, tensor) for name, tensor in wanted.items()):
        return None
    return Inputs(*(tensor[:batch_size] for tensor in wanted.values()))


def _pooled(pool: dict[Any, torch.Tensor], name: str, tensor: torch.Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(key[0] == name and held.untyped_storage().data_ptr() == address for key, held in pool.items())
