"""A refresh compared with SGLang's own, which SGLang makes on copies of its metadata.

The parts are `copies_in_place`, which lets SGLang refresh copies, and `require_same`, which compares a bucket with such
copies. `Comparer` uses them in service, for every so many replays of a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from qsa_group import QsaGroupError

from .bridge import BUFFERS, backends_of, buffer, graph_metadata
from .bucket import Bucket
from .counts import COUNTS
from .faults import reading
from .planning import PlannedBucket

__all__ = ["Comparer", "VerificationError", "copies_in_place", "copy_of_metadata", "first_difference", "require_same"]


class VerificationError(QsaGroupError, RuntimeError):
    """A refresh of the plugin differs from SGLang's own. Please report it with the message."""


class _Pending(NamedTuple):
    """A bucket whose graph has yet to run, and SGLang's own refresh for the same batch."""

    planned: PlannedBucket
    copies: Sequence[Any]


class Comparer:
    """Compares every so many refreshes of one backend.

    A refresh that was launched is compared at once. A recorded refresh runs with its graph, after SGLang's method has
    returned. Its comparison waits for the next call of the method, and nothing else writes the buffers until then.

    Args:
        every: replays from one comparison to the next.
        refresh_by_sglang: SGLang's own method, called with the owner and the live batch.
    """

    def __init__(self, every: int, refresh_by_sglang: Callable[..., Any]) -> None:
        self._every = every
        self._refresh_by_sglang = refresh_by_sglang
        self._replays = 0
        self._pending: _Pending | None = None

    def settle(self) -> None:
        """Makes the comparison that waits, if there is one.

        Raises:
            VerificationError: with the first difference.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            require_same(pending.planned, pending.copies, "recorded")

    def forget(self) -> None:
        """Drops the comparison that waits, since its buffers are being made anew."""
        self._pending = None

    def replay(self, bucket: Bucket, owner: Any, forward_batch: Any) -> bool:
        """As `Bucket.replay`, with a comparison when it is time.

        Raises:
            VerificationError: with the first difference.
        """
        self.settle()
        self._replays += 1
        if self._replays % self._every:
            return bucket.replay(owner, forward_batch)
        planned = bucket.planned
        with copies_in_place(planned, owner) as copies, reading("SGLang's own refresh on copies of its metadata"):
            self._refresh_by_sglang(owner, forward_batch)
        if not bucket.replay(owner, forward_batch):
            return False
        if bucket.recorded:
            self._pending = _Pending(planned, copies)
        else:
            require_same(planned, copies, planned.plans[0].plan.backend)
        return True


@contextmanager
def copies_in_place(planned: PlannedBucket, owner: Any) -> Iterator[list[Any]]:
    """Puts copies in place of a bucket's metadata for a while, so that SGLang refreshes the copies.

    Yields:
        The copies, one a step.
    """
    backends = backends_of(owner, planned.phase)
    originals = [graph_metadata(backend, planned.forward_mode, planned.batch_size) for backend in backends]
    copies = [copy_of_metadata(metadata) for metadata in originals]
    with reading("forward_metadata of a backend"):
        current = [backend.forward_metadata for backend in backends]
    # SGLang's draft container keeps launch arguments that hold addresses of the originals.
    arguments = getattr(owner, "_draft_graph_metadata_args", None)
    try:
        _put_in_place(planned, backends, copies)
        if arguments is not None:
            owner._draft_graph_metadata_args = {}
        yield copies
    finally:
        _put_in_place(planned, backends, originals)
        for backend, metadata in zip(backends, current, strict=True):
            backend.forward_metadata = metadata
        if arguments is not None:
            owner._draft_graph_metadata_args = arguments


def _put_in_place(planned: PlannedBucket, backends: Sequence[Any], all_metadata: Sequence[Any]) -> None:
    for backend, metadata in zip(backends, all_metadata, strict=True):
        backend._cuda_graph_metadata[planned.forward_mode, planned.batch_size] = metadata


def copy_of_metadata(metadata: Any) -> Any:
    """SGLang's metadata of one step, with buffers of its own for everything that a refresh writes."""
    # By address: both structs have views of their own of some buffers.
    clones = {_place(tensor): tensor.clone() for tensor in (buffer(metadata, name) for name in BUFFERS)}
    with reading("the fields of the graph metadata"):
        indexer = metadata.indexer_metadata
        indexer_copy = type(indexer)(**_fields(indexer, clones))
        return type(metadata)(**{**_fields(metadata, clones), "indexer_metadata": indexer_copy})


def _fields(struct: Any, clones: dict[tuple[Any, ...], torch.Tensor]) -> dict[str, Any]:
    """The fields of a struct, with the clones in place of their originals."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {
        name: clones.get(_place(value), value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape


def require_same(planned: PlannedBucket, copies: Sequence[Any], way: str) -> None:
    """Compares a refreshed bucket with SGLang's own refresh of its copies.

    Args:
        planned: the bucket.
        copies: SGLang's metadata of each step, refreshed by SGLang.
        way: how the bucket was refreshed, for the message.

    Raises:
        VerificationError: with the first difference.
    """
    COUNTS.verified += 1
    page_size = planned.plans[0].plan.table.page_size
    for step, (ours, theirs) in enumerate(zip(planned.metadata, copies, strict=True)):
        if step in planned.leftover:
            continue
        difference = first_difference(ours, theirs, planned.names, page_size)
        if difference is not None:
            raise VerificationError(
                f"{planned.phase} graph of batch size {planned.batch_size}, step {step}, {way}: {difference}"
            )


def first_difference(ours: Any, theirs: Any, names: Sequence[str], page_size: int) -> str | None:
    """The first entry of the named buffers that differs, in words; None where none does.

    Two kinds of entries may differ and are not compared. Page table entries past a row's length have no reader. Rows of
    request slot 0 belong to no request: this package makes them inert, and SGLang gives some of them a length.
    """
    lengths, slots = buffer(ours, "sequence_lengths"), buffer(ours, "row_req_pool_indices")
    padding = slots == 0
    wrongly_padding = padding & ((lengths != 1) | _belongs_to_request(theirs))
    if bool(wrongly_padding.any()):
        return _describe("row_req_pool_indices", wrongly_padding, slots, buffer(theirs, "row_req_pool_indices"))
    for name in names:
        our_buffer, their_buffer = buffer(ours, name), buffer(theirs, name)
        compared = ~padding if our_buffer.ndim == 1 else (~padding)[:, None].expand_as(our_buffer)
        if name == "page_table":
            columns = torch.arange(our_buffer.shape[1], device=our_buffer.device)
            compared = compared & (columns * page_size < lengths[:, None])
        differs = (our_buffer != their_buffer) & compared
        if bool(differs.any()):
            return _describe(name, differs, our_buffer, their_buffer)
    return None


def _belongs_to_request(theirs: Any) -> torch.Tensor:
    """Rows that SGLang takes for those of a request.

    SGLang's host staging gives rows behind the batch the slot of the first request, with length 1. Its kernels give
    them slot 0.
    """
    lengths, slots = buffer(theirs, "sequence_lengths"), buffer(theirs, "row_req_pool_indices")
    return (slots != 0) if slots.is_cuda else (slots != 0) & (lengths != 1)


def _describe(name: str, differs: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> str:
    index = tuple(int(i) for i in differs.nonzero()[0])
    return (
        f"{name}[{', '.join(map(str, index))}] is {int(ours[index])}, SGLang has {int(theirs[index])}; "
        f"{int(differs.sum())} entries of this buffer differ"
    )
