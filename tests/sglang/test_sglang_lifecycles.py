"""What happens to backends over the life of a server, each time with SGLang's own values afterwards."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_harness import (
    Batch,
    DraftRunner,
    Engine,
    assert_same_round,
    copy_of_module,
    differences,
    paged_table,
    poison,
    random_batch,
)

from qsa_group.errors import PlanChangedError, UnsupportedError
from qsa_group.sglang import refresh
from qsa_group.sglang.bridge import ALL_BUFFERS, buffer

BUCKETS = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def unpatched() -> Any:
    return copy_of_module()


@pytest.fixture
def pair(plugin: Callable[..., Any], unpatched: Any) -> Callable[..., tuple[Engine, Engine]]:
    """An engine on the hooked classes and one on classes that are not, both with their graphs captured."""

    def make(*, settings: dict[str, Any] | None = None, **options: Any) -> tuple[Engine, Engine]:
        plugin(**(settings or {}))
        ours, theirs = Engine(**options), Engine(unpatched, **options)
        for engine in (ours, theirs):
            engine.capture(*BUCKETS)
        return ours, theirs

    return make


def some_rounds(ours: Engine, theirs: Engine, seed: int = 0, rounds: int = 4) -> None:
    draw = random.Random(seed)
    for _ in range(rounds):
        batch = random_batch(draw, draw.randint(1, 8), slots=12, width=ours.table.shape[1])
        assert_same_round(ours, theirs, batch)


def state(backend: Any) -> Any:
    return getattr(backend, refresh.ATTRIBUTE)


@contextmanager
def no_collector() -> Iterator[None]:
    """Nothing but reference counts frees objects here."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_weight_update_with_new_graphs(pair: Any) -> None:
    ours, theirs = pair()
    some_rounds(ours, theirs)
    old = [
        weakref.ref(plan)
        for runner in ours.runners
        for sizes in state(runner.backend).buckets.values()
        for bucket in sizes.values()
        for plan, _ in bucket.plans
    ]
    assert len(old) == 3 * len(BUCKETS)
    with no_collector():
        for engine in (ours, theirs):
            for name, runner in (("draft", engine.draft), ("verify", engine.verify), ("extend", engine.extend)):
                setattr(engine, name, type(runner)(runner.backend, max_batch=runner.max_batch))
            del runner
            engine.capture(*BUCKETS)
        assert [ref() for ref in old] == [None] * len(old)
    some_rounds(ours, theirs, seed=1)


def test_new_buffers_make_every_plan_stale(pair: Any, plugin: Any) -> None:
    ours, _ = pair(phases=("draft",))
    backend = ours.draft.backend
    kept = [metadata for size in BUCKETS for metadata in ours.draft.metadata(size)]
    backend.init_cuda_graph_state(8, 8)
    assert not any(state(backend).buckets.values())
    assert state(backend).stats() == []
    # Until the bucket is captured again SGLang refreshes what it still holds, and so it is done here.
    before = plugin().stats()["sglang"]
    poison(ours.draft, 2)
    backend.init_forward_metadata_out_graph(ours.draft.replay_batch(Batch([5, 9], [1, 2]), 2))
    assert plugin().stats()["sglang"] == before + 1
    assert buffer(kept[2], "sequence_lengths").tolist() == [6, 10]
    assert len(state(backend).retired) == len(BUCKETS)
    ours.draft.capture(*BUCKETS)
    assert not state(backend).retired


def test_adaptive_speculation(plugin: Any, unpatched: Any) -> None:
    plugin()
    table = paged_table(12, 1024)
    ours = [Engine(steps=steps, table=table) for steps in (2, 4, 1)]
    theirs = [Engine(unpatched, steps=steps, table=table) for steps in (2, 4, 1)]
    for engine in (*ours, *theirs):
        engine.capture(*BUCKETS)
    draw = random.Random(0)
    for turn in range(12):
        active = turn % 3
        for other in ours:
            for runner in other.runners:
                poison(runner, 8)
        batch = random_batch(draw, draw.randint(1, 8), slots=12, width=1024)
        assert_same_round(ours[active], theirs[active], batch)
        for index, other in enumerate(ours):
            if index != active:
                for runner in other.runners:
                    for metadata in runner.metadata(8):
                        assert all(bool((buffer(metadata, name) == 77).all()) for name in ALL_BUFFERS)


def test_idle_rank_replays_a_bucket_of_padding(pair: Any) -> None:
    ours, theirs = pair()
    some_rounds(ours, theirs)
    for mine, other in zip(ours.runners, theirs.runners, strict=True):
        poison(mine, 4)
        for runner in (mine, other):
            runner.round(Batch([], [], []), size=4)
        assert not differences(mine, other, 4, inert_slots=mine.phase == "draft")
        assert buffer(mine.metadata(4)[0], "sequence_lengths").unique().tolist() == [1]
    some_rounds(ours, theirs, seed=1)


def test_bucket_that_was_not_captured_is_left_to_sglang(pair: Any) -> None:
    ours, theirs = pair(phases=("draft",))
    for engine in (ours, theirs):
        with pytest.raises(KeyError):
            engine.draft.backend.init_forward_metadata_out_graph(engine.draft.replay_batch(Batch([], []), 0))


def test_no_step_backends(pair: Any) -> None:
    ours, theirs = pair(steps=0, phases=("draft",))
    for engine in (ours, theirs):
        engine.draft.round(Batch([5], [1]))
    assert not any(state(ours.draft.backend).buckets.values())


def test_fewer_backends_than_configured(pair: Any, unpatched: Any) -> None:
    ours, theirs = pair(steps=4, phases=("draft",))
    for engine in (ours, theirs):
        del engine.draft.backend.attn_backends[3:]
        engine.capture(*BUCKETS)
    some_rounds(ours, theirs)


def test_sleep_that_loses_what_memory_holds(pair: Any) -> None:
    ours, theirs = pair()
    some_rounds(ours, theirs)
    # The addresses stay, the contents do not.
    ours.table.fill_(1 << 30)
    for runner in ours.runners:
        for size in BUCKETS:
            poison(runner, size)
        runner.seq_lens.fill_(3)
        runner.slots.fill_(5)
    fresh = paged_table(12, ours.table.shape[1], seed=9)
    ours.table.copy_(fresh)
    theirs.table.copy_(fresh)
    some_rounds(ours, theirs, seed=1)


def test_a_dropped_backend_frees_its_plans(plugin: Any) -> None:
    plugin()
    engine = Engine()
    engine.capture(*BUCKETS)
    kept = [weakref.ref(state(runner.backend)) for runner in engine.runners]
    plans = [
        weakref.ref(plan)
        for runner in engine.runners
        for sizes in state(runner.backend).buckets.values()
        for bucket in sizes.values()
        for plan, _ in bucket.plans
    ]
    with no_collector():
        del engine
        assert [ref() for ref in (*kept, *plans)] == [None] * (len(kept) + len(plans))


def test_capture_drop_capture(plugin: Any, unpatched: Any) -> None:
    plugin()
    table = paged_table(12, 1024)
    first = Engine(table=table)
    first.capture(*BUCKETS)
    old = first.draft.metadata(8)
    poison(first.draft, 8)
    del first
    ours, theirs = Engine(table=table), Engine(unpatched, table=table)
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    some_rounds(ours, theirs)
    assert all(bool((buffer(metadata, name) == 77).all()) for metadata in old for name in ALL_BUFFERS)


@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_several_graphs_of_one_bucket(pair: Any, plugin: Any, phase: str) -> None:
    ours, theirs = pair(phases=(phase,))
    (runner,) = ours.runners
    batch = runner.capture_batches[4]
    (bucket,) = [state(runner.backend).buckets[phase][4]]
    assert bucket.recorded
    # A second graph of the bucket, captured without the call inside: both must be served.
    runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
    assert not state(runner.backend).buckets[phase][4].recorded
    some_rounds(ours, theirs)
    runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
    with runner.graphs[4].capture():
        runner.backend.init_forward_metadata_in_graph(batch)
    assert not state(runner.backend).buckets[phase][4].recorded
    some_rounds(ours, theirs)
    # Starting over makes it whole again.
    runner.backend.init_cuda_graph_state(8, 8 * runner.width)
    (other,) = theirs.runners
    other.backend.init_cuda_graph_state(8, 8 * other.width)
    for each in (runner, other):
        each.capture(*BUCKETS)
    assert state(runner.backend).buckets[phase][4].recorded
    some_rounds(ours, theirs)


def test_graph_from_before_a_bucket_could_be_planned(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair(phases=("draft",))
    backend = ours.draft.backend
    backend.init_cuda_graph_state(8, 8)
    theirs.draft.backend.init_cuda_graph_state(8, 8)
    with monkeypatch.context() as broken:
        broken.setattr(refresh, "request_table", lambda *_: (_ for _ in ()).throw(UnsupportedError("not yet")))
        ours.draft.capture(*BUCKETS)
    assert not state(backend).buckets["draft"]
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    # The graphs from before may still be replayed, and hold no refresh.
    assert not any(bucket.recorded for bucket in state(backend).buckets["draft"].values())
    some_rounds(ours, theirs)


def test_debug_mode_runs_the_call_inside_at_each_replay(plugin: Any, unpatched: Any) -> None:
    stats = plugin().stats
    ours, theirs = Engine(), Engine(unpatched)
    ours.capture(*BUCKETS, record=False)
    theirs.capture(*BUCKETS)
    for runner in ours.runners:
        for size, graph in runner.graphs.items():
            batch = runner.capture_batches[size]
            graph.replay = lambda runner=runner, batch=batch: runner.backend.init_forward_metadata_in_graph(batch)  # type: ignore[method-assign]
    some_rounds(ours, theirs)
    assert stats()["nodes"] == 0


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices"])
@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_tensors_that_the_graph_does_not_read(pair: Any, phase: str, name: str) -> None:
    ours, _ = pair(phases=(phase,))
    (runner,) = ours.runners
    batch = runner.replay_batch(Batch([5, 6, 7], [1, 2, 3], [1, 1, 1]), 4)
    setattr(batch, name, getattr(batch, name).clone())
    with pytest.raises(PlanChangedError, match="QSA_GROUP_SGLANG_MODE=direct"):
        runner.backend.init_forward_metadata_out_graph(batch)


def test_a_container_with_other_backends_than_at_the_capture(pair: Any) -> None:
    """No backend may keep the metadata of an earlier batch without a word."""
    ours, _ = pair(phases=("draft",))
    (runner,) = ours.runners
    batch = runner.replay_batch(Batch([5, 6, 7], [1, 2, 3], [1, 1, 1]), 4)
    runner.backend.attn_backends = runner.backend.attn_backends[:-1]
    with pytest.raises(PlanChangedError, match="capture the graphs again"):
        runner.backend.init_forward_metadata_out_graph(batch)


def test_warm_up_leaves_every_row_inert(plugin: Any) -> None:
    plugin()
    engine = Engine()
    for runner in engine.runners:
        runner.capture(8, record=False)
        # A runner that did not clear its buffers: live values of the last batch stand in them.
        runner.seq_lens.fill_(500)
        runner.slots.fill_(3)
        batch = runner.capture_batches[8]
        runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
        for _ in range(2):
            runner.backend.init_forward_metadata_in_graph(batch)
        for metadata in runner.metadata(8):
            assert buffer(metadata, "logical_positions").unique().tolist() == [0]
            assert buffer(metadata, "write_locs").unique().tolist() == [0]
            assert buffer(metadata, "pending_ring_slots").unique().tolist() == [0]


def test_eager_metadata_is_untouched(plugin: Any, unpatched: Any) -> None:
    plugin()
    matrices = []
    for engine in (Engine(steps=3), Engine(unpatched, steps=3)):
        batch = engine.draft.capture_batch(2)
        batch.seq_lens, batch.req_pool_indices = torch.tensor([10, 20]), torch.tensor([3, 4])
        batch.seq_lens_cpu = batch.seq_lens.clone()
        batch.positions, batch.mrope_positions, batch.extend_seq_lens = batch.seq_lens - 1, None, None
        engine.draft.backend.init_forward_metadata(batch)
        children = engine.draft.backend.attn_backends
        matrices.append([child.forward_metadata.sequence_lengths.tolist() for child in children])
    assert matrices == [[[11, 21], [12, 22], [13, 23]]] * 2


def test_steps_with_tables_of_their_own(pair: Any, plugin: Any) -> None:
    ours, theirs = pair(steps=3, phases=("draft",))
    other_table = paged_table(12, 1024, seed=5)
    for engine in (ours, theirs):
        engine.draft.backend.attn_backends[1].req_to_token = other_table
        engine.capture(*BUCKETS)
    some_rounds(ours, theirs)
    bucket = state(ours.draft.backend).buckets["draft"][8]
    assert [steps for _, steps in bucket.plans] == [(0, 2), (1,)]


def test_a_step_that_cannot_be_planned_is_sglangs(pair: Any, plugin: Any) -> None:
    ours, theirs = pair(steps=3, phases=("draft",))
    for engine in (ours, theirs):
        # SGLang copies into whatever is there; a plan takes int32 alone.
        child = engine.draft.backend.attn_backends[1]
        child._graph_write_locs = child._graph_write_locs.to(torch.int64)
        engine.capture(*BUCKETS)
    some_rounds(ours, theirs, rounds=6)
    bucket = state(ours.draft.backend).buckets["draft"][8]
    assert bucket.leftover == (1,)
    assert [steps for _, steps in bucket.plans] == [(0, 2)]
    assert plugin().stats()["sglang_steps"] == 6


def test_runners_share_their_buffers_across_containers(plugin: Any, unpatched: Any) -> None:
    plugin()
    table = paged_table(12, 1024)
    engines = [Engine(steps=steps, table=table, phases=("draft",)) for steps in (2, 3)]
    assert engines[0].draft.seq_lens.data_ptr() == engines[1].draft.seq_lens.data_ptr()
    for engine in engines:
        engine.capture(*BUCKETS)
    for engine in engines:
        other = Engine(unpatched, steps=len(engine.draft.backend.attn_backends), table=table, phases=("draft",))
        other.capture(*BUCKETS)
        some_rounds(engine, other)


def test_an_attribute_that_workers_ask_for_stays(plugin: Any) -> None:
    plugin()
    engine = Engine()
    container = engine.draft.backend
    assert isinstance(container, engine.module.QwenSparseMultiStepDraftBackend)
    assert container.needs_cpu_seq_lens is False
    assert len(container.attn_backends) == 2
    assert callable(container.set_mtp_shared_sparse_indices)
    assert isinstance(engine.draft, DraftRunner)


def test_other_modes_of_a_backend_are_sglangs(plugin: Any) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    stats = plugin().stats
    engine = Engine(phases=("verify",))
    backend = engine.verify.backend
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        batch_size=2,
        req_pool_indices=torch.tensor([1, 2]),
        seq_lens=torch.tensor([5, 9]),
        seq_lens_cpu=None,
        spec_info=None,
        num_padding=0,
    )
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    backend.init_forward_metadata_out_graph(batch)
    assert backend.forward_metadata.sequence_lengths.tolist() == [5, 9]
    assert stats()["captures"] == 0
    assert refresh.ATTRIBUTE not in backend.__dict__
