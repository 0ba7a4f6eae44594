"""Buffers after a refresh through the plugin, against those of a backend that nothing has hooked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from sglang_harness import Batch, Engine, assert_same_round, copy_of_module, random_batch

from qsa_group.sglang.bridge import ALL_BUFFERS, SHARED_INDEX_BUFFERS

BUCKETS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def unpatched() -> Any:
    return copy_of_module()


def pair(unpatched: Any, **options: Any) -> tuple[Engine, Engine]:
    """An engine on the hooked classes and one on classes that are not."""
    ours, theirs = Engine(**options), Engine(unpatched, **options)
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    return ours, theirs


def run_rounds(ours: Engine, theirs: Engine, rounds: int, seed: int, **options: Any) -> None:
    draw = random.Random(seed)
    for _ in range(rounds):
        size = draw.randint(1, max(BUCKETS))
        assert_same_round(ours, theirs, random_batch(draw, size, slots=12, width=ours.table.shape[1]), **options)


@pytest.mark.parametrize("mode", ["recorded", "direct"])
@pytest.mark.parametrize("steps", range(1, 8))
def test_every_number_of_steps(plugin: Callable[..., Any], unpatched: Any, steps: int, mode: str) -> None:
    # Off the CPU "direct" asks for direct launches; here it means a refresh before the replay.
    stats = plugin(mode=mode).stats
    ours, theirs = pair(unpatched, steps=steps)
    assert stats()["captures"] == 3 * len(BUCKETS)
    run_rounds(ours, theirs, rounds=12, seed=steps)
    taken = "recorded" if mode == "recorded" else "launched"
    assert stats()[taken] == 3 * 12
    assert stats()["sglang"] == 0


def test_recapture_with_new_buffers(plugin: Callable[..., Any], unpatched: Any) -> None:
    plugin()
    ours, theirs = pair(unpatched)
    run_rounds(ours, theirs, rounds=4, seed=1)
    for engine in (ours, theirs):
        for runner in engine.runners:
            runner.backend.init_cuda_graph_state(runner.max_batch, runner.max_batch * runner.width)
        engine.capture(*BUCKETS)
    run_rounds(ours, theirs, rounds=8, seed=2)


def test_recapture_without_new_buffers(plugin: Callable[..., Any], unpatched: Any) -> None:
    stats = plugin().stats
    ours, theirs = pair(unpatched)
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    run_rounds(ours, theirs, rounds=8, seed=3)
    assert stats()["recorded"] == 24


def test_runner_that_is_not_known_gets_a_launch(plugin: Callable[..., Any], unpatched: Any) -> None:
    stats = plugin().stats
    ours, theirs = pair(unpatched, shared=False)
    run_rounds(ours, theirs, rounds=8, seed=4)
    assert stats()["launched"] == 24
    assert stats()["nodes"] == stats()["recorded"] == 0


def test_graph_without_the_call_inside_gets_a_launch(plugin: Callable[..., Any], unpatched: Any) -> None:
    stats = plugin().stats
    ours, theirs = Engine(), Engine(unpatched)
    ours.capture(*BUCKETS, record=False)
    theirs.capture(*BUCKETS)
    run_rounds(ours, theirs, rounds=8, seed=5)
    assert stats()["launched"] == 24


@pytest.mark.parametrize("buffers", ["read", "all"])
def test_index_sharing(plugin: Callable[..., Any], unpatched: Any, buffers: str) -> None:
    plugin(buffers=buffers)
    ours, theirs = pair(unpatched, index_sharing=True)

    def names(phase: str) -> Any:
        return SHARED_INDEX_BUFFERS if phase == "draft" and buffers == "read" else ALL_BUFFERS

    run_rounds(ours, theirs, rounds=8, seed=6, names=names)
    (bucket, *_) = ours.draft.backend._qsa_group_state.buckets["draft"].values()
    assert bucket.names == names("draft")


@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_phases_can_be_left_to_sglang(plugin: Callable[..., Any], unpatched: Any, phase: str) -> None:
    stats = plugin(phases=frozenset({phase})).stats
    ours, theirs = pair(unpatched)
    run_rounds(ours, theirs, rounds=4, seed=7)
    assert stats()["recorded"] == 4
    assert stats()["captures"] == len(BUCKETS)


def test_extend_lengths_from_host_values(plugin: Callable[..., Any], unpatched: Any) -> None:
    plugin(mode="direct")
    ours, theirs = pair(unpatched, phases=("extend",))

    def without_tensor(runner: Any) -> None:
        made = runner.replay_batch

        def replay_batch(batch: Batch, size: int) -> Any:
            found = made(batch, size)
            found.spec_info.extend_seq_lens_tensor = None
            return found

        runner.replay_batch = replay_batch

    for engine in (ours, theirs):
        without_tensor(engine.extend)
    run_rounds(ours, theirs, rounds=8, seed=8)


def test_padding_resets_every_field(plugin: Callable[..., Any], unpatched: Any) -> None:
    plugin()
    ours, theirs = pair(unpatched)
    assert_same_round(ours, theirs, Batch([900, 901, 902, 903], [1, 2, 3, 4], [1, 2, 3, 4]))
    assert_same_round(ours, theirs, Batch([900, 901, 902], [1, 2, 3], [0, 2, 0]))


def test_lengths_around_every_boundary(plugin: Callable[..., Any], unpatched: Any) -> None:
    plugin()
    ours, theirs = pair(unpatched, steps=3)
    for start in (1, 2, 3, 4, 60, 61, 62, 63, 64, 65, 127, 128):
        assert_same_round(ours, theirs, Batch([start, start + 1, start + 3], [7, 2, 9], [1, 0, 4]))
