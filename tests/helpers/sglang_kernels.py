"""SGLang's own metadata kernels as a second judge, loaded by file path: SGLang itself is not imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from helpers.arena import Arena

FILE = Path("srt", "layers", "attention", "qsa", "graph_metadata.py")
MODE = {"decode": 0, "target_verify": 1, "draft_extend": 2}


def find() -> Path | None:
    """The file of an installed SGLang, or of the one that QSA_GROUP_SGLANG_PATH names (the wheel's content or its
    `sglang` folder)."""
    roots = [Path(p) for p in [os.environ.get("QSA_GROUP_SGLANG_PATH")] if p]
    spec = importlib.util.find_spec("sglang")
    if spec is not None:
        roots += [Path(p) for p in spec.submodule_search_locations or []]
    for root in roots:
        for candidate in (root / FILE, root / "sglang" / FILE, root):
            if candidate.is_file():
                return candidate
    return None


@cache
def load() -> ModuleType | None:
    """The module, or None where there is no SGLang."""
    path = find()
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("sglang_graph_metadata", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Metadata:
    """The buffers of an arena as SGLang names them. Its kernels take page table rows and ring rows without gaps."""

    def __init__(self, arena: Arena, table: torch.Tensor, ratio: int, page: int) -> None:
        assert arena.page_gap == 0 and arena.ring_gap == 0
        self.table = table
        self.pool = SimpleNamespace(qsa_compress_ratio=ratio, qsa_compressed_page_size=page // ratio)
        self.steps = [self._step(arena.step(step), ratio) for step in range(arena.steps)]
        self.rows = arena.rows
        self._prepared: Any = None

    @staticmethod
    def _step(buffers: dict[str, torch.Tensor], ratio: int) -> SimpleNamespace:
        return SimpleNamespace(
            sequence_lengths=buffers["sequence_lengths"],
            row_req_pool_indices=buffers["row_req_pool_indices"],
            indexer_metadata=SimpleNamespace(
                compress_ratio=ratio,
                graph_prefix_lengths=buffers["prefix_lengths"],
                graph_compressed_lengths=buffers["compressed_lengths"],
                graph_write_locs=buffers["write_locs"],
                graph_compressed_page_table=buffers["page_table"],
                decode_logical_positions=buffers["logical_positions"],
                pending_ring_slots=buffers["pending_ring_slots"],
                graph_ring_group_locs=buffers["ring_group_locs"],
            ),
        )

    def fused_draft(self, module: ModuleType, lens: torch.Tensor, slots: torch.Tensor, num_padding: int) -> None:
        """Every draft step in one launch; step s adds s + 1."""
        if self._prepared is None:
            self._prepared = module.prepare_draft_graph_metadata(self.steps, self.table, self.pool)
        module.launch_draft_graph_metadata(self._prepared, lens, slots, lens.shape[0], num_padding)

    def step_by_step(
        self,
        module: ModuleType,
        mode: str,
        lens: torch.Tensor,
        slots: torch.Tensor,
        num_padding: int,
        *,
        extend_lens: torch.Tensor | None = None,
        window: int = 0,
        offsets: Sequence[int] = (1,),
    ) -> None:
        """A launch a step (two in draft extend)."""
        for metadata, offset in zip(self.steps, offsets, strict=True):
            module.launch_graph_metadata(
                mode=MODE[mode],
                bs=lens.shape[0],
                num_rows=self.rows,
                seq_lens=lens,
                req_pool_indices=slots,
                extend_lens=extend_lens,
                extend_len=window,
                num_padding=num_padding,
                metadata=metadata,
                req_to_token=self.table,
                pool=self.pool,
                seq_offset=offset,
            )
