"""What a caller describes: the request table, and the buffers of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

__all__ = ["FIELDS", "SHARED_INDEX_FIELDS", "RequestTable", "StepBuffers"]

FIELDS = _core.FIELDS
"""Names of a step's buffers, in the order of `docs/semantics.md`."""

SHARED_INDEX_FIELDS = ("sequence_lengths", "row_req_pool_indices", "logical_positions")
"""What a draft step reads when the draft shares the sparse indices of the pass before it (MTP index sharing)."""


class RequestTable(_core.Table):
    """The engine's table of KV slots. A refresh reads write locations and page ids from the table.

    Args:
        req_to_token: [slots, width] int32, KV slot of each token of each request. The KV slots of a page are
            consecutive, and the first is a multiple of `page_size`. Any strides below 4 GiB that keep the entries
            apart. Request slot 0, the first row of the table, is never allocated. Padding rows read it.
        compress_ratio: tokens of a compressed group, at least 1.
        page_size: full-KV tokens of a page, a multiple of `compress_ratio`.
        ring_size: entries of a request's pending ring, a multiple of `compress_ratio`; None for `compress_ratio`.

    Raises:
        LayoutError: naming `req_to_token`, `compress_ratio`, `page_size` or `ring_size`.
    """

    def __new__(
        cls, req_to_token: torch.Tensor, *, compress_ratio: int, page_size: int, ring_size: int | None = None
    ) -> Self:
        """Validates the table."""
        return super().__new__(cls, req_to_token, compress_ratio, page_size, ring_size)

    def __init__(
        self, req_to_token: torch.Tensor, *, compress_ratio: int, page_size: int, ring_size: int | None = None
    ) -> None:
        del compress_ratio, page_size, ring_size  # The core has them.
        self._req_to_token = req_to_token

    @property
    def req_to_token(self) -> torch.Tensor:
        """The table, [slots, width] int32. Another table needs another `RequestTable`."""
        return self._req_to_token

    @property
    def device(self) -> torch.device:
        """Device of the table, and of everything that is planned over the table."""
        return self._req_to_token.device

    def __repr__(self) -> str:
        return (
            f"RequestTable([{self.slots}, {self.width}] on {self.device}, compress_ratio={self.compress_ratio}, "
            f"page_size={self.page_size}, ring_size={self.ring_size})"
        )


@dataclass(frozen=True, eq=False)
class StepBuffers:
    """The buffers that one step's graph reads. An absent buffer (None) is not computed.

    A row of length n has position pos = n - 1. The row's request slot is r. The formulas are those of
    `docs/semantics.md`. `ReplayPlanner.plan` raises `LayoutError` for a buffer of another form.

    Attributes:
        offset: tokens that the step adds to a request's live length, 0 to 2^29, usually step + 1; decode mode only.
        sequence_lengths: [rows] int32, n.
        row_req_pool_indices: [rows] int32, r.
        prefix_lengths: [rows] int32, tokens before the rows of this pass; in decode n - 1.
        compressed_lengths: [rows] int32, n // ratio.
        write_locs: [rows] int32, `req_to_token[r, pos] // ratio` if n is a multiple of the ratio; otherwise 0.
        logical_positions: [rows] int32, n - 1.
        pending_ring_slots: [rows] int64, r * ring_size + pos % ring_size.
        ring_group_locs: [rows, ratio] int32, entry k: r * ring_size + max(pos - (ratio - 1 - k), 0) % ring_size.
        page_table: [rows, max_pages] int32, entry p: `req_to_token[r, p * page_size] // page_size`. Entries past
            ceil(n / page_size) keep what they hold, so allocate zeros.
    """

    offset: int = 1
    sequence_lengths: torch.Tensor | None = None
    row_req_pool_indices: torch.Tensor | None = None
    prefix_lengths: torch.Tensor | None = None
    compressed_lengths: torch.Tensor | None = None
    write_locs: torch.Tensor | None = None
    logical_positions: torch.Tensor | None = None
    pending_ring_slots: torch.Tensor | None = None
    ring_group_locs: torch.Tensor | None = None
    page_table: torch.Tensor | None = None

    def present(self) -> dict[str, torch.Tensor]:
        """The buffers of the step by name, in the order of `FIELDS`."""
        buffers = ((name, getattr(self, name)) for name in FIELDS)
        return {name: buffer for name, buffer in buffers if buffer is not None}
