"""Triton kernels of the benches: an empty one, and one that copies page tables and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from .timing import Call

__all__ = ["copy_kernel", "empty_kernel"]

PAGE_SIZE = tl.constexpr(64)


@triton.jit
def _nothing():
    pass


def empty_kernel() -> Call:
    """An empty kernel of one program, without parameters, started through Triton's front."""
    launch = _nothing[(1,)]

    def call(*_: Any) -> None:
        launch(num_warps=1)

    return call


@triton.jit
def _copy(
    seq_lens, req_pool_indices, req_to_token, width, page_tables, page_stride, block: tl.constexpr, steps: tl.constexpr
):
    row = tl.program_id(0)
    length = tl.load(seq_lens + row)
    slot = tl.load(req_pool_indices + row).to(tl.int64)
    page = tl.program_id(1) * block + tl.arange(0, block)
    live = page * PAGE_SIZE < length
    entry = tl.load(req_to_token + slot * width + page * PAGE_SIZE, live, other=0)
    for step in tl.static_range(steps):
        tl.store(page_tables[step] + row * page_stride + page, entry // PAGE_SIZE, live)


def copy_kernel(table: torch.Tensor, page_tables: Sequence[torch.Tensor], live: int, block: int) -> Call:
    """The least that a refresh with page tables must do, specialised for one shape.

    The kernel reads each row's length and slot and the request table at each page, and writes the page table of each
    step. The kernel adds no offsets, writes no other buffer and checks no input.

    Args:
        table: the request table.
        page_tables: the page table of each step.
        live: tokens of the longest row.
        block: pages of a program, one a thread.
    """
    rows, stride = page_tables[0].shape[0], page_tables[0].stride(0)
    launch = _copy[rows, max(-(-live // (block * PAGE_SIZE.value)), 1)]
    tables, warps = tuple(page_tables), block // 32

    def call(seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, *_: Any) -> None:
        launch(seq_lens, req_pool_indices, table, table.shape[1], tables, stride, block, len(tables), num_warps=warps)

    return call
