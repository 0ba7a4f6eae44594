"""Refreshes compared with SGLang's own in service: a wrong one is found, and a right one passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from sglang_harness import BUCKETS, Batch, Engine, assert_same_round, random_batch

from qsa_group import FIELDS
from qsa_group.sglang import VerificationError, stats
from qsa_group.sglang.bridge import buffer
from qsa_group.sglang.bucket import Bucket
from qsa_group.sglang.compare import copy_of_metadata

BATCH = Batch([63, 64, 65], [1, 2, 3], [4, 4, 4])


@pytest.mark.parametrize("mode", ["recorded", "direct"])
@pytest.mark.parametrize("every", [1, 3])
def test_what_is_right_passes(pair: Callable[..., Any], mode: str, every: int) -> None:
    ours, theirs = pair(settings={"mode": mode, "verify_every": every, "log_every": 5}, steps=3)
    draw = random.Random(every)
    for _ in range(9):
        batch = random_batch(draw, draw.randint(1, 8), slots=12, width=1024)
        # The comparison that waits for the next call would find the poison.
        assert_same_round(ours, theirs, batch, poisoned=False)
    # A recorded refresh is compared at the next call.
    waiting = 3 if mode == "recorded" else 0
    assert stats()["verified"] == 3 * (9 // every) - waiting


@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("mode", ["recorded", "direct"])
def test_what_is_wrong_is_found(
    plugin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: str, phase: str, name: str
) -> None:
    plugin(mode=mode, verify_every=1)
    engine = Engine(phases=(phase,))
    engine.capture(*BUCKETS)
    (runner,) = engine.runners
    live = runner.replay_batch(BATCH, 4)

    def spoil() -> None:
        (metadata, *_) = runner.metadata(4)
        buffer(metadata, name).view(-1)[1 if name != "page_table" else 0] += 1

    if mode == "direct":
        run = Bucket.run

        def run_and_spoil(bucket: Any, *inputs: Any) -> None:
            run(bucket, *inputs)
            spoil()

        monkeypatch.setattr(Bucket, "run", run_and_spoil)
    else:
        runner.backend.init_forward_metadata_out_graph(live)
        runner.graphs[4].replay()
        spoil()
    with pytest.raises(VerificationError, match=rf"{phase} graph of batch size 4, step 0, .*{name}\["):
        runner.backend.init_forward_metadata_out_graph(live)


def test_a_real_row_made_inert_is_found(plugin: Callable[..., Any]) -> None:
    plugin(verify_every=1)
    engine = Engine(phases=("draft",))
    engine.capture(4)
    live = engine.draft.replay_batch(BATCH, 4)
    engine.draft.backend.init_forward_metadata_out_graph(live)
    engine.draft.graphs[4].replay()
    for metadata in engine.draft.metadata(4):
        buffer(metadata, "sequence_lengths")[2] = 1
        buffer(metadata, "row_req_pool_indices")[2] = 0
    with pytest.raises(VerificationError, match="row_req_pool_indices"):
        engine.draft.backend.init_forward_metadata_out_graph(live)


def test_the_waiting_comparison_is_made_before_sglang_refreshes_another_bucket(plugin: Callable[..., Any]) -> None:
    plugin(verify_every=1)
    engine = Engine(phases=("draft",))
    engine.capture(2, 4)
    # Bucket 2 is SGLang's from here on. Both buckets stand in the same memory.
    del engine.draft.state.in_service["draft"][2]
    engine.draft.round(BATCH, size=4)
    buffer(engine.draft.metadata(4)[0], "sequence_lengths")[0] += 1
    with pytest.raises(VerificationError, match="graph of batch size 4, step 0, recorded: sequence_lengths"):
        engine.draft.round(Batch([5, 6], [1, 2]), size=2)


def test_new_buffers_drop_the_waiting_comparison(plugin: Callable[..., Any]) -> None:
    plugin(verify_every=1)
    engine = Engine(phases=("draft",))
    engine.capture(4)
    live = engine.draft.replay_batch(BATCH, 4)
    engine.draft.backend.init_forward_metadata_out_graph(live)
    engine.draft.backend.init_cuda_graph_state(8, 8)
    engine.draft.capture(4)
    engine.draft.round(BATCH)


def test_copies_share_nothing_that_is_written(plugin: Callable[..., Any]) -> None:
    plugin()
    engine = Engine(phases=("draft",))
    engine.capture(4)
    (metadata, *_) = engine.draft.metadata(4)
    copy = copy_of_metadata(metadata)
    for name in FIELDS:
        assert buffer(copy, name).data_ptr() != buffer(metadata, name).data_ptr()
    assert copy.token_slot_table is metadata.token_slot_table
    assert copy.indexer_metadata.sequence_lengths is copy.sequence_lengths
    assert copy.indexer_metadata.req_pool_indices is copy.row_req_pool_indices
