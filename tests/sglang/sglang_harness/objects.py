"""The objects around the backends: a KV pool, a model runner and a request table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

RATIO, PAGE = 4, 64


def qsa_pool(ratio: int = RATIO, page: int = PAGE) -> Any:
    """A KV pool with sizes and no memory."""
    from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

    pool = object.__new__(QSATokenToKVPool)
    pool.qsa_compress_ratio = ratio
    pool.qsa_compressed_page_size = page // ratio
    pool.qsa_block_topk = 512
    pool.full_kv_pool = None
    return pool


def model_runner(table: torch.Tensor, *, ratio: int = RATIO, page: int = PAGE, context: int = 0) -> SimpleNamespace:
    """A model runner with the attributes that the backends read."""
    return SimpleNamespace(
        device=table.device,
        token_to_kv_pool=qsa_pool(ratio, page),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        is_draft_worker=True,
        model_config=SimpleNamespace(
            context_len=context or table.shape[1], hf_config=SimpleNamespace(indexer_compress_ratio=ratio)
        ),
        kv_index_translator=SimpleNamespace(is_translating=False),
    )


def paged_table(slots: int, width: int, *, page: int = PAGE, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """A request table [slots, width] of random pages. Slot 0 is reserved and zero."""
    draw = torch.Generator().manual_seed(seed)
    pages = torch.randint(1, 1 << 20, (slots, width // page), generator=draw, dtype=torch.int32)
    table = (pages[:, :, None] * page + torch.arange(page, dtype=torch.int32)).reshape(slots, width)
    table[0] = 0
    return table.to(device)
