"""Buffers of two engines compared, round by round."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qsa_group import FIELDS
from qsa_group.sglang.bridge import buffer

from .batches import Batch, grown, random_batch
from .engine import BUCKETS, Engine
from .objects import PAGE

POISON = 77
"""A valid page id that no row has."""

_SLOT_BUFFERS = ("row_req_pool_indices", "pending_ring_slots", "ring_group_locs", "page_table")
"""Buffers whose values follow from a row's request slot."""


def poison(runner: Any, size: int) -> None:
    """Fills a bucket's buffers with a valid page id that no row has, so that a missing refresh is seen."""
    for metadata in runner.metadata(size):
        for name in FIELDS:
            buffer(metadata, name).fill_(POISON)


def differences(
    ours: Any, theirs: Any, size: int, *, names: Sequence[str] = FIELDS, page: int = PAGE, inert_slots: bool = True
) -> list[str]:
    """The first different entry of each buffer of a bucket, in words.

    Page table entries past a row's length are not compared, since no reader reads them.

    Args:
        ours: a runner.
        theirs: the runner that it is compared with.
        size: the bucket.
        names: the buffers to compare.
        page: tokens of a page.
        inert_slots: whether to compare what follows from the slots of rows behind the batch. SGLang's host staging
            gives these rows the slot of the first request.
    """
    texts = []
    for step, (our_metadata, their_metadata) in enumerate(zip(ours.metadata(size), theirs.metadata(size), strict=True)):
        lengths = buffer(their_metadata, "sequence_lengths")
        behind = (
            (lengths == 1)
            & (buffer(their_metadata, "prefix_lengths") == 0)
            & (buffer(our_metadata, "row_req_pool_indices") == 0)
        )
        for name in names:
            our_buffer, their_buffer = buffer(our_metadata, name), buffer(their_metadata, name)
            wrong = our_buffer != their_buffer
            if name == "page_table":
                wrong &= torch.arange(our_buffer.shape[1]) * page < lengths[:, None]
            if not inert_slots and name in _SLOT_BUFFERS:
                wrong &= ~(behind if our_buffer.ndim == 1 else behind[:, None])
            if bool(wrong.any()):
                index = tuple(int(i) for i in wrong.nonzero()[0])
                texts.append(
                    f"step {step}: {name}{list(index)} is {int(our_buffer[index])}, SGLang has "
                    f"{int(their_buffer[index])}"
                )
    return texts


def assert_same_round(
    ours: Engine,
    theirs: Engine,
    batch: Batch,
    *,
    names: Callable[[str], Sequence[str]] = lambda phase: FIELDS,
    poisoned: bool = True,
) -> None:
    """Runs a round on both engines and compares their buffers.

    Args:
        ours: an engine with the plugin.
        theirs: the engine that it is compared with.
        batch: the live batch.
        names: the buffers to compare, by phase.
        poisoned: whether our buffers hold other values before the round.
    """
    for mine, other in zip(ours.runners, theirs.runners, strict=True):
        live = grown(batch) if mine.phase == "extend" else batch
        size = mine.bucket_of(len(batch.seq_lens))
        if poisoned:
            poison(mine, size)
        mine.round(live)
        other.round(live)
        wrong = differences(mine, other, size, names=names(mine.phase), inert_slots=mine.phase == "draft")
        assert not wrong, f"{mine.phase}, {len(batch.seq_lens)} of {size}: {wrong}"
        assert [backend.forward_metadata for backend in mine.step_backends] == mine.metadata(size)


def random_rounds(ours: Engine, theirs: Engine, *, rounds: int = 4, seed: int = 0, **options: Any) -> None:
    """`assert_same_round` with random batches of all sizes."""
    draw = random.Random(seed)
    for _ in range(rounds):
        size = draw.randint(1, max(BUCKETS))
        batch = random_batch(draw, size, slots=ours.table.shape[0], width=ours.table.shape[1])
        assert_same_round(ours, theirs, batch, **options)
