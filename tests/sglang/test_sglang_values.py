"""Values: buffers after a refresh through the plugin are those of backends that nothing has hooked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sglang_harness import (
    BUCKETS,
    Batch,
    Engine,
    assert_same_round,
    differences,
    paged_table,
    poison,
    random_rounds,
)

from qsa_group import FIELDS, SHARED_INDEX_FIELDS
from qsa_group.sglang import stats
from qsa_group.sglang.bridge import buffer

Pair = Callable[..., tuple[Engine, Engine]]


@pytest.mark.parametrize("mode", ["recorded", "direct"])
@pytest.mark.parametrize("steps", range(1, 8))
def test_every_number_of_steps(pair: Pair, steps: int, mode: str) -> None:
    # On a GPU "direct" asks for direct launches. On the CPU it means a refresh before each replay.
    ours, theirs = pair(settings={"mode": mode}, steps=steps)
    assert stats()["captures"] == 3 * len(BUCKETS)
    random_rounds(ours, theirs, rounds=12, seed=steps)
    taken = "recorded" if mode == "recorded" else "launched"
    assert stats()[taken] == 3 * 12
    assert stats()["sglang"] == 0


def test_recapture_with_new_buffers(pair: Pair) -> None:
    ours, theirs = pair()
    random_rounds(ours, theirs, rounds=4, seed=1)
    for engine in (ours, theirs):
        for runner in engine.runners:
            runner.backend.init_cuda_graph_state(runner.max_batch, runner.max_batch * runner.width)
        engine.capture(*BUCKETS)
    random_rounds(ours, theirs, rounds=8, seed=2)


def test_recapture_without_new_buffers(pair: Pair) -> None:
    ours, theirs = pair()
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    random_rounds(ours, theirs, rounds=8, seed=3)
    assert stats()["recorded"] == 24


def test_runner_that_is_not_known_gets_a_launch(pair: Pair) -> None:
    ours, theirs = pair(shared=False)
    random_rounds(ours, theirs, rounds=8, seed=4)
    assert stats()["launched"] == 24
    assert stats()["nodes"] == stats()["recorded"] == 0


def test_graph_without_the_call_inside_gets_a_launch(plugin: Callable[..., Any], unpatched: Any) -> None:
    plugin()
    ours, theirs = Engine(), Engine(unpatched)
    ours.capture(*BUCKETS, record=False)
    theirs.capture(*BUCKETS)
    random_rounds(ours, theirs, rounds=8, seed=5)
    assert stats()["launched"] == 24


@pytest.mark.parametrize("buffers", ["read", "all"])
def test_index_sharing(pair: Pair, buffers: str) -> None:
    ours, theirs = pair(settings={"buffers": buffers}, index_sharing=True)

    def names(phase: str) -> Any:
        return SHARED_INDEX_FIELDS if phase == "draft" and buffers == "read" else FIELDS

    random_rounds(ours, theirs, rounds=8, seed=6, names=names)
    (bucket, *_) = ours.draft.state.buckets["draft"].values()
    assert bucket.planned.names == names("draft")


@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_phases_can_be_left_to_sglang(pair: Pair, phase: str) -> None:
    ours, theirs = pair(settings={"phases": frozenset({phase})})
    random_rounds(ours, theirs, rounds=4, seed=7)
    assert stats()["recorded"] == 4
    assert stats()["captures"] == len(BUCKETS)


def test_extend_lengths_from_host_values(pair: Pair) -> None:
    ours, theirs = pair(settings={"mode": "direct"}, phases=("extend",))

    def without_tensor(runner: Any) -> None:
        replay_batch = runner.replay_batch

        def replay_batch_without_tensor(batch: Batch, size: int) -> Any:
            forward_batch = replay_batch(batch, size)
            forward_batch.spec_info.extend_seq_lens_tensor = None
            return forward_batch

        runner.replay_batch = replay_batch_without_tensor

    for engine in (ours, theirs):
        without_tensor(engine.extend)
    random_rounds(ours, theirs, rounds=8, seed=8)


def test_padding_resets_every_field(pair: Pair) -> None:
    ours, theirs = pair()
    assert_same_round(ours, theirs, Batch([900, 901, 902, 903], [1, 2, 3, 4], [1, 2, 3, 4]))
    assert_same_round(ours, theirs, Batch([900, 901, 902], [1, 2, 3], [0, 2, 0]))


def test_lengths_around_every_boundary(pair: Pair) -> None:
    ours, theirs = pair(steps=3)
    for start in (1, 2, 3, 4, 60, 61, 62, 63, 64, 65, 127, 128):
        assert_same_round(ours, theirs, Batch([start, start + 1, start + 3], [7, 2, 9], [1, 0, 4]))


def test_idle_rank_replays_a_bucket_of_padding(pair: Pair) -> None:
    ours, theirs = pair()
    random_rounds(ours, theirs)
    for mine, other in zip(ours.runners, theirs.runners, strict=True):
        poison(mine, 4)
        for runner in (mine, other):
            runner.round(Batch([], [], []), size=4)
        assert not differences(mine, other, 4, inert_slots=mine.phase == "draft")
        assert buffer(mine.metadata(4)[0], "sequence_lengths").unique().tolist() == [1]
    random_rounds(ours, theirs, seed=1)


def test_steps_with_tables_of_their_own(pair: Pair) -> None:
    ours, theirs = pair(steps=3, phases=("draft",))
    other_table = paged_table(12, 1024, seed=5)
    for engine in (ours, theirs):
        engine.draft.backend.attn_backends[1].req_to_token = other_table
        engine.capture(*BUCKETS)
    random_rounds(ours, theirs)
    assert [steps for _, steps in ours.draft.bucket(8).planned.plans] == [(0, 2), (1,)]
