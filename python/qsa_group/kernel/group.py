"""The numbers of a group, unpacked from the argument words."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .bits import PAGE_BITS_SHIFT
from .numbers import LiveVector, high_half, low_half

__all__ = ["Group", "LiveBatch", "Table", "unpack"]


class LiveBatch(NamedTuple):
    """The live batch."""

    seq_lens: Any
    """`LiveVector` of lengths."""
    req_pool_indices: Any
    """`LiveVector` of request slots."""
    extend_lens: Any
    """`LiveVector` of rows of each request; read in draft extend only."""
    flags: Any
    """`PADDING_BY_SLOT`, or 0, in the lowest bits."""
    num_real: Any
    """Requests that are not padding by count."""
    window: Any
    """Rows of a request in target verify, 1 in the other modes."""


class Table(NamedTuple):
    """The request table: the KV slot of each token of each request."""

    address: Any
    slot_stride: Any
    """Bytes from a request slot to the next."""
    token_stride: Any
    """Bytes from a token to the next."""
    num_slots: Any
    width: Any
    """Tokens of a slot."""


class Group(NamedTuple):
    """All numbers of a group. The addresses of buffers and the offsets of steps stay in the `GroupArguments`."""

    live: Any
    """`LiveBatch`."""
    table: Any
    """`Table`."""
    num_rows: Any
    """Rows of the bucket."""
    num_pages: Any
    """Page table entries of a row that exist."""
    page_stride: Any
    """Bytes from a row of the page tables to the next."""
    ring_stride: Any
    """Bytes from a row of the ring group locations to the next."""
    num_heads: Any
    """Programs that are heads, the first ones of the group."""
    page_bits: Any
    """Base 2 logarithm of a row's page lanes."""


@triton.jit
def unpack(arguments):
    """The `Group` of a group's `GroupArguments`."""
    flags = low_half(arguments.flags_and_real)
    num_real = high_half(arguments.flags_and_real)
    num_heads = low_half(arguments.heads_and_window)
    window = high_half(arguments.heads_and_window)
    return Group(
        num_heads=num_heads,
        table=Table(
            address=arguments.req_to_token.to(tl.int64),
            slot_stride=low_half(arguments.table_strides),
            token_stride=high_half(arguments.table_strides),
            num_slots=low_half(arguments.slots_and_width),
            width=high_half(arguments.slots_and_width),
        ),
        page_stride=low_half(arguments.output_strides),
        ring_stride=high_half(arguments.output_strides),
        num_rows=low_half(arguments.rows_and_pages),
        num_pages=high_half(arguments.rows_and_pages),
        page_bits=flags >> PAGE_BITS_SHIFT,
        live=LiveBatch(
            seq_lens=LiveVector(
                address=arguments.seq_lens,
                stride=low_half(arguments.live_strides),
                high_limit=low_half(arguments.high_limits),
            ),
            req_pool_indices=LiveVector(
                address=arguments.req_pool_indices,
                stride=high_half(arguments.live_strides),
                high_limit=high_half(arguments.high_limits),
            ),
            extend_lens=LiveVector(
                address=arguments.extend_lens,
                stride=low_half(arguments.extend_stride_and_limit),
                high_limit=high_half(arguments.extend_stride_and_limit),
            ),
            flags=flags,
            num_real=num_real,
            window=window,
        ),
    )
