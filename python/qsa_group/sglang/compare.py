"""The refresh compared with SGLang's own, in service, every so many rounds.

SGLang's own method is run on a copy of its metadata. Where this package has launched before the replay, the two are
compared at once. Where the refresh is a node of the graph, it runs after SGLang has handed over, so the comparison
waits for the next call: until then nothing else writes these buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from qsa_group.errors import QsaGroupError

from .bridge import ALL_BUFFERS, buffer
from .counts import COUNTS
from .refresh import Bucket

__all__ = ["Comparer", "VerificationError", "copied", "first_difference", "on_copies"]


class VerificationError(QsaGroupError, RuntimeError):
    """The refresh left something else than SGLang's own. Please report it with the message."""


@dataclass(frozen=True)
class _Pending:
    """A comparison that waits for the graph to have run."""

    bucket: Bucket
    reference: list[Any]


class Comparer:
    """Compares every so many refreshes of one backend."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._seen = 0
        self._pending: _Pending | None = None

    def settle(self) -> None:
        """Makes the comparison that waits, if there is one.

        Raises:
            VerificationError: with the first difference.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            _compare(pending.bucket, pending.reference)

    def forget(self) -> None:
        """Drops the comparison that waits: its buffers are being made anew."""
        self._pending = None

    def replay(self, bucket: Bucket, owner: Any, forward_batch: Any, original: Callable[..., Any]) -> bool:
        """Refreshes a bucket as `Bucket.replay` does, and compares when it is time."""
        self._seen += 1
        if self._seen % self._every:
            return bucket.replay(owner, forward_batch)
        with on_copies(bucket, owner) as reference:
            original(owner, forward_batch)
        if not bucket.replay(owner, forward_batch):
            return False
        if bucket.recorded:
            self._pending = _Pending(bucket, reference)
        else:
            _compare(bucket, reference)
        return True


@contextmanager
def on_copies(bucket: Bucket, owner: Any) -> Iterator[list[Any]]:
    """While this lasts, SGLang refreshes copies of the bucket's metadata; yields them, one a step."""
    children = list(owner.attn_backends) if bucket.phase == "draft" else [owner]
    key = (bucket.forward_mode, bucket.batch_size)
    kept = [(child._cuda_graph_metadata[key], child.forward_metadata) for child in children]
    copies = [copied(metadata) for metadata, _ in kept]
    arguments = getattr(owner, "_draft_graph_metadata_args", None)
    try:
        for child, copy in zip(children, copies, strict=True):
            child._cuda_graph_metadata[key] = copy
        if arguments is not None:
            owner._draft_graph_metadata_args = {}
        yield copies
    finally:
        for child, (metadata, current) in zip(children, kept, strict=True):
            child._cuda_graph_metadata[key] = metadata
            child.forward_metadata = current
        if arguments is not None:
            owner._draft_graph_metadata_args = arguments


def copied(metadata: Any) -> Any:
    """SGLang's metadata of one step, with buffers of its own for everything that a refresh writes."""
    indexer = metadata.indexer_metadata
    # By address: both structs have views of their own on some of the buffers.
    fresh = {_place(tensor): tensor.clone() for tensor in (buffer(metadata, name) for name in ALL_BUFFERS)}
    new_indexer = type(indexer)(**_fields(indexer, fresh))
    return type(metadata)(**{**_fields(metadata, fresh), "indexer_metadata": new_indexer})


def _fields(struct: Any, fresh: dict[tuple[Any, ...], torch.Tensor]) -> dict[str, Any]:
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {
        name: fresh.get(_place(value), value) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape


def _compare(bucket: Bucket, reference: Sequence[Any]) -> None:
    COUNTS.verified += 1
    plan, _ = bucket.plans[0]
    for step, (ours, theirs) in enumerate(zip(bucket.metadata, reference, strict=True)):
        if step in bucket.leftover:
            continue
        found = first_difference(ours, theirs, bucket.names, plan.table.page_size)
        if found is not None:
            raise VerificationError(
                f"{bucket.phase} graph of batch size {bucket.batch_size}, step {step}, "
                f"{'recorded' if bucket.recorded else plan.backend}: {found}"
            )


def first_difference(ours: Any, theirs: Any, names: Sequence[str], page_size: int) -> str | None:
    """The first entry of these buffers that differs, in words; None where none does.

    Two things may differ. Page table entries past a row's length, which no reader reads, are not compared. Nor are the
    rows of request slot 0, which no request owns: this package makes them inert, SGLang gives some of them a length.
    """
    lengths, slots = buffer(ours, "sequence_lengths"), buffer(ours, "row_req_pool_indices")
    padding = slots == 0
    wrong = padding & ((lengths != 1) | _is_real(theirs))
    if bool(wrong.any()):
        return _words("row_req_pool_indices", wrong, slots, buffer(theirs, "row_req_pool_indices"))
    for name in names:
        mine, other = buffer(ours, name), buffer(theirs, name)
        matters = ~padding if mine.ndim == 1 else (~padding)[:, None].expand_as(mine)
        if name == "page_table":
            columns = torch.arange(mine.shape[1], device=mine.device)
            matters = matters & (columns * page_size < lengths[:, None])
        differs = (mine != other) & matters
        if bool(differs.any()):
            return _words(name, differs, mine, other)
    return None


def _is_real(theirs: Any) -> torch.Tensor:
    """Rows that SGLang takes for those of a request.

    Its host staging gives the rows behind the batch the slot of the first request, with length 1; its kernels give them
    slot 0.
    """
    lengths, slots = buffer(theirs, "sequence_lengths"), buffer(theirs, "row_req_pool_indices")
    return (slots != 0) if slots.is_cuda else (slots != 0) & (lengths != 1)


def _words(name: str, differs: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> str:
    at = tuple(int(i) for i in differs.nonzero()[0])
    place = ", ".join(map(str, at))
    return (
        f"{name}[{place}] is {int(ours[at])}, SGLang has {int(theirs[at])}; "
        f"{int(differs.sum())} entries of this buffer differ"
    )
