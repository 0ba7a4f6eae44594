"""Reads SGLang's objects, and turns them into this package's.

An object that is not as expected raises `UnexpectedSGLangError`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from qsa_group import FIELDS, SHARED_INDEX_FIELDS, RequestTable, StepBuffers

from .faults import reading
from .phase import DRAFT, VERIFY

__all__ = [
    "BUFFERS",
    "Capture",
    "backends_of",
    "buffer",
    "buffers_read",
    "capture_extend_lens",
    "graph_metadata",
    "has_gpu_kernels",
    "is_translating",
    "pool_of",
    "read_capture",
    "refresh_step_by_sglang",
    "request_table",
    "step_buffers",
]

_PLACES = {
    # Buffer of a step: its field of QwenSparseAttnMetadata, or with a dot of the indexer_metadata inside.
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


BUFFERS = tuple(name for name in FIELDS if name in _PLACES)
"""The buffers that SGLang refreshes, by this package's names. This package may have more."""


@dataclass(frozen=True)
class Capture:
    """A bucket whose metadata SGLang has just made.

    Attributes:
        owner: the container of the draft steps, or the backend of verify or extend.
        phase: "draft", "verify" or "extend".
        forward_mode: the mode that SGLang keeps the metadata under.
        forward_batch: SGLang's batch of the capture.
        batch_size: requests of the bucket.
        backends: SGLang's backend of each step.
        metadata: SGLang's metadata of each step.
        seq_lens: length of each request, as SGLang handed them over.
        draft_token_num: rows a request, None but in verify.
    """

    owner: Any
    phase: str
    forward_mode: Any
    forward_batch: Any
    batch_size: int
    backends: tuple[Any, ...]
    metadata: tuple[Any, ...]
    seq_lens: torch.Tensor
    draft_token_num: int | None


def read_capture(owner: Any, phase: str, forward_mode: Any, forward_batch: Any) -> Capture:
    """Reads what SGLang has just captured.

    Raises:
        UnexpectedSGLangError: the batch or a backend is not as expected.
    """
    with reading(f"the batch of the {phase} capture"):
        batch_size = int(forward_batch.batch_size)
        seq_lens = forward_batch.seq_lens
        draft_token_num = int(forward_batch.spec_info.draft_token_num) if phase == VERIFY else None
    backends = backends_of(owner, phase)
    return Capture(
        owner=owner,
        phase=phase,
        forward_mode=forward_mode,
        forward_batch=forward_batch,
        batch_size=batch_size,
        backends=backends,
        metadata=tuple(graph_metadata(backend, forward_mode, batch_size) for backend in backends),
        seq_lens=seq_lens,
        draft_token_num=draft_token_num,
    )


def backends_of(owner: Any, phase: str) -> tuple[Any, ...]:
    """SGLang's backend of each step; the owner itself where it is no container."""
    if phase != DRAFT:
        return (owner,)
    with reading("the step backends of the draft container"):
        return tuple(owner.attn_backends)


def graph_metadata(backend: Any, forward_mode: Any, batch_size: int) -> Any:
    """A backend's metadata of one bucket."""
    with reading("a backend's graph metadata"):
        return backend._cuda_graph_metadata[forward_mode, batch_size]


def buffer(metadata: Any, name: str) -> torch.Tensor:
    """One buffer of a backend's graph metadata, by this package's name."""
    field = _PLACES[name]
    with reading(f"the metadata field {field.lstrip('.')}"):
        struct = metadata.indexer_metadata if field.startswith(".") else metadata
        tensor: torch.Tensor = getattr(struct, field.lstrip("."))
        return tensor


def step_buffers(metadata: Any, offset: int, names: Collection[str]) -> StepBuffers:
    """The named buffers of a backend's graph metadata as those of one step."""
    return StepBuffers(offset, **{name: buffer(metadata, name) for name in names})


def pool_of(metadata: Any) -> Any:
    """The KV pool of a backend's graph metadata."""
    with reading("the KV pool of the metadata"):
        return metadata.indexer_metadata.token_to_kv_pool


def request_table(backend: Any, metadata: Any) -> RequestTable:
    """The request table that a backend's refresh reads, with the sizes that SGLang's kernels take from the pool."""
    pool = pool_of(metadata)
    with reading("the request table and the sizes of the KV pool"):
        tokens = backend.req_to_token
        ratio = int(pool.qsa_compress_ratio)
        page_size = int(pool.qsa_compressed_page_size) * ratio
    return RequestTable(tokens, compress_ratio=ratio, page_size=page_size)


def buffers_read(capture: Capture) -> tuple[str, ...]:
    """The buffers that each draft step of the graph will read.

    SGLang calls the same method in the model's forward. Its answer at the capture is therefore what the graph holds,
    whatever is set later. With shared indices the model (`models/qwen4_exp.py`) runs no indexer, and the indexer is the
    only reader of six buffers. The core attention reads row lengths and request slots. The index look-up and the block
    expansion read logical positions.
    """
    with reading("should_reuse_mtp_sparse_indices"):
        sharing = all(backend.should_reuse_mtp_sparse_indices(capture.forward_batch) for backend in capture.backends)
    return SHARED_INDEX_FIELDS if sharing else BUFFERS


def is_translating(capture: Capture, step: int) -> bool:
    """Whether the request table of a step holds virtual ids, by the step's pool, its backend or their runners."""
    with reading("kv_index_translator"):
        owner, backend = capture.owner, capture.backends[step]
        runners = (getattr(owner, "model_runner", None), getattr(backend, "runner", None))
        holders = (owner, backend, pool_of(capture.metadata[step]), *runners)
        translators = [getattr(holder, "kv_index_translator", None) for holder in holders]
        return any(bool(getattr(translator, "is_translating", False)) for translator in translators)


def has_gpu_kernels(backend: Any, metadata: Any, seq_lens: torch.Tensor) -> bool:
    """Whether SGLang itself would refresh this metadata by a kernel, and not through the host."""
    with reading("_can_replay_with_gpu_kernels"):
        return bool(backend._can_replay_with_gpu_kernels(metadata, seq_lens))


def capture_extend_lens(owner: Any, forward_batch: Any) -> torch.Tensor | None:
    """The extend lengths of a capture, where SGLang itself looks for them; None where it finds none."""
    with reading("_capture_extend_seq_lens"):
        try:
            lengths: torch.Tensor = owner._capture_extend_seq_lens(forward_batch)
            return lengths
        except RuntimeError:
            return None


def refresh_step_by_sglang(owner: Any, step: int, metadata: Any, forward_mode: Any, forward_batch: Any) -> None:
    """Refreshes one draft step by SGLang's own methods: by its kernel if that is possible, else through the host."""
    padding = getattr(forward_batch, "num_padding", None) or 0
    with reading("SGLang's own refresh of a draft step"):
        backend = owner.attn_backends[step]
        if backend._can_replay_with_gpu_kernels(metadata, forward_batch.seq_lens):
            backend._replay_cuda_graph_metadata_gpu(
                metadata,
                bs=forward_batch.batch_size,
                req_pool_indices=forward_batch.req_pool_indices,
                seq_lens=forward_batch.seq_lens,
                forward_mode=forward_mode,
                spec_info=forward_batch.spec_info,
                seq_lens_cpu=forward_batch.seq_lens_cpu,
                num_padding=padding,
                seq_offset=step + 1,
            )
            return
        batch = owner._make_step_forward_batch(forward_batch, step, num_padding=padding)
        backend._replay_cuda_graph_metadata(
            bs=batch.batch_size,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            forward_mode=forward_mode,
            spec_info=batch.spec_info,
            seq_lens_cpu=batch.seq_lens_cpu,
            num_padding=padding,
        )
