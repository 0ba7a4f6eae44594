"""A runner of each phase over one module's classes, and the objects that the backends read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from lib.workload import PAGE_SIZE, RATIO
from qsa_group import FIELDS

from .graphs import Graph
from .modules import DRAFT_TOKENS
from .runners import DraftRunner, ExtendRunner, Runner, VerifyRunner

__all__ = ["Engine"]

SHARED_INDEX_FIELDS = ("sequence_lengths", "row_req_pool_indices", "logical_positions")
"""Buffers that a draft graph reads where its steps share the indices of draft extend. No indexer runs there."""


class Engine:
    """A runner of each phase.

    Args:
        module: SGLang's module with the classes.
        table: the request table.
        steps: draft steps, one less than SGLang counts.
        max_batch: requests of the largest bucket.
        context: context limit in tokens.
        make_graph: makes a graph.
        index_sharing: whether the draft steps share the indices of draft extend.
        copied: whether the graphs copy out what they read.

    Attributes:
        runners: the runners, in the order of a round.
    """

    def __init__(
        self,
        module: ModuleType,
        table: torch.Tensor,
        *,
        steps: int,
        max_batch: int,
        context: int,
        make_graph: Callable[[], Graph],
        index_sharing: bool = True,
        copied: bool = False,
    ) -> None:
        runner = _model_runner(table, context)
        container = module.QwenSparseMultiStepDraftBackend(runner, topk=1, speculative_num_steps=steps + 1)
        container.set_mtp_shared_sparse_indices(object() if index_sharing else None)
        draft_fields = SHARED_INDEX_FIELDS if index_sharing else FIELDS
        common: dict[str, Any] = {"max_batch": max_batch, "device": table.device, "make_graph": make_graph}
        wide = {**common, "width": DRAFT_TOKENS, "copied": FIELDS if copied else ()}
        self.runners: list[Runner] = [
            DraftRunner(container, **common, width=1, copied=draft_fields if copied else ()),
            VerifyRunner(module.QwenSparseAttnBackend(runner), **wide),
            ExtendRunner(module.QwenSparseAttnBackend(runner), **wide),
        ]

    def capture(self, sizes: Sequence[int]) -> None:
        """Captures graphs of these batch sizes in every phase."""
        for runner in self.runners:
            runner.capture(sizes)


def _model_runner(table: torch.Tensor, context: int) -> SimpleNamespace:
    """A model runner with the attributes that the backends read."""
    return SimpleNamespace(
        device=table.device,
        token_to_kv_pool=_kv_pool(),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        is_draft_worker=True,
        model_config=SimpleNamespace(context_len=context, hf_config=SimpleNamespace(indexer_compress_ratio=RATIO)),
        kv_index_translator=SimpleNamespace(is_translating=False),
    )


def _kv_pool() -> Any:
    """A KV pool with sizes and no memory."""
    from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

    pool = object.__new__(QSATokenToKVPool)
    pool.qsa_compress_ratio = RATIO
    pool.qsa_compressed_page_size = PAGE_SIZE // RATIO
    pool.qsa_block_topk = 512
    pool.full_kv_pool = None
    return pool
