"""What happens to backends and plans over the life of a server, with SGLang's own values afterwards."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang_harness import (
    BUCKETS,
    POISON,
    Batch,
    Engine,
    assert_same_round,
    paged_table,
    poison,
    random_batch,
    random_rounds,
)

from qsa_group import FIELDS
from qsa_group.sglang import stats
from qsa_group.sglang.bridge import buffer


@contextmanager
def no_collector() -> Iterator[None]:
    """While this lasts, reference counts alone free objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def plans_of(engine: Engine) -> list[weakref.ref[Any]]:
    """References to every plan of an engine that do not keep it."""
    return [
        weakref.ref(plan)
        for runner in engine.runners
        for buckets in runner.state.buckets.values()
        for bucket in buckets.values()
        for plan in bucket.plans
    ]


def is_poisoned(metadata: Any) -> bool:
    """Whether no buffer was written since `poison`."""
    return all(bool((buffer(metadata, name) == POISON).all()) for name in FIELDS)


def test_weight_update_with_new_graphs(pair: Any) -> None:
    ours, theirs = pair()
    random_rounds(ours, theirs)
    old = plans_of(ours)
    assert len(old) == 3 * len(BUCKETS)
    with no_collector():
        for engine in (ours, theirs):
            for name, runner in (("draft", engine.draft), ("verify", engine.verify), ("extend", engine.extend)):
                setattr(engine, name, type(runner)(runner.backend, max_batch=runner.max_batch))
            del runner
            engine.capture(*BUCKETS)
        assert [ref() for ref in old] == [None] * len(old)
    random_rounds(ours, theirs, seed=1)


def test_new_buffers_make_every_plan_stale(pair: Any) -> None:
    ours, _ = pair(phases=("draft",))
    backend, state = ours.draft.backend, ours.draft.state
    old = [metadata for size in BUCKETS for metadata in ours.draft.metadata(size)]
    backend.init_cuda_graph_state(8, 8)
    assert not any(state.buckets.values())
    assert state.stats() == []
    # SGLang refreshes the old metadata until the bucket is captured again.
    before = stats()["sglang"]
    poison(ours.draft, 2)
    backend.init_forward_metadata_out_graph(ours.draft.replay_batch(Batch([5, 9], [1, 2]), 2))
    assert stats()["sglang"] == before + 1
    assert buffer(old[2], "sequence_lengths").tolist() == [6, 10]
    assert len(state.retired) == len(BUCKETS)
    ours.draft.capture(*BUCKETS)
    assert not state.retired


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
        for engine in ours:
            for runner in engine.runners:
                poison(runner, 8)
        batch = random_batch(draw, draw.randint(1, 8), slots=12, width=1024)
        assert_same_round(ours[active], theirs[active], batch)
        for index, engine in enumerate(ours):
            if index != active:
                assert all(is_poisoned(metadata) for runner in engine.runners for metadata in runner.metadata(8))


def test_fewer_backends_than_configured(pair: Any) -> None:
    ours, theirs = pair(steps=4, phases=("draft",))
    for engine in (ours, theirs):
        del engine.draft.backend.attn_backends[3:]
        engine.capture(*BUCKETS)
    random_rounds(ours, theirs)


def test_sleep_that_loses_what_memory_holds(pair: Any) -> None:
    ours, theirs = pair()
    random_rounds(ours, theirs)
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
    random_rounds(ours, theirs, seed=1)


def test_a_dropped_backend_frees_its_plans(plugin: Any) -> None:
    plugin()
    engine = Engine()
    engine.capture(*BUCKETS)
    states, plans = [weakref.ref(runner.state) for runner in engine.runners], plans_of(engine)
    with no_collector():
        del engine
        assert [ref() for ref in (*states, *plans)] == [None] * (len(states) + len(plans))


def test_a_dropped_backend_frees_its_plans_when_watched(plugin: Any) -> None:
    plugin(verify_every=1, log_every=1)
    engine = Engine()
    engine.capture(*BUCKETS)
    engine.round(Batch([5, 9], [1, 2], [1, 1]))
    states, plans = [weakref.ref(runner.state) for runner in engine.runners], plans_of(engine)
    with no_collector():
        del engine
        assert [ref() for ref in (*states, *plans)] == [None] * (len(states) + len(plans))


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
    random_rounds(ours, theirs)
    assert all(is_poisoned(metadata) for metadata in old)


def test_runners_share_their_buffers_across_containers(plugin: Any, unpatched: Any) -> None:
    plugin()
    table = paged_table(12, 1024)
    engines = [Engine(steps=steps, table=table, phases=("draft",)) for steps in (2, 3)]
    assert engines[0].draft.seq_lens.data_ptr() == engines[1].draft.seq_lens.data_ptr()
    for engine in engines:
        engine.capture(*BUCKETS)
    for engine in engines:
        other = Engine(unpatched, steps=len(engine.draft.step_backends), table=table, phases=("draft",))
        other.capture(*BUCKETS)
        random_rounds(engine, other)
