"""Which plans are found again, which are not, and what keeps what alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import HOST, Backend, Harness, live_inputs, planner_of, step_buffers
from helpers.oracle import FIELDS, Case
from qsa_group import ReplayPlan, ReplayPlanner, RequestTable, StepBuffers

ROWS, COLUMNS = 4, 4
ROUND = Case(
    random_table(np.random.default_rng(2), 6, 256, 64), [60, 70, 80, 250], [1, 2, 3, 4], rows=ROWS, offsets=[1, 2]
)


def new_arena(backend: Backend = HOST, **form: Any) -> Arena:
    """Two steps of buffers."""
    return Arena(2, ROWS, 4, COLUMNS, backend.device, **form)


def plan(planner: ReplayPlanner, arena: Arena, offsets: tuple[int, ...] = (1, 2), **arguments: Any) -> ReplayPlan:
    """Plans the steps of an arena, from new step objects and new views."""
    return planner.plan(step_buffers(arena, offsets), **arguments)


def counts(planner: ReplayPlanner) -> tuple[int, int]:
    """Hits and misses."""
    stats = planner.stats()
    return stats["hits"], stats["misses"]


def test_same_content_is_the_same_plan(backend: Backend) -> None:
    planner, arena = planner_of(ROUND, backend), new_arena(backend)
    first = plan(planner, arena)
    assert counts(planner) == (0, 1)
    assert plan(planner, arena) is first
    assert plan(planner, arena, mode="decode", padding="count") is first
    assert counts(planner) == (2, 1)
    stats = planner.stats()
    assert (stats["cached"], stats["plans"], stats["evictions"], stats["dropped"]) == (1, 1, 0, 0)


def test_a_hit_compiles_nothing_and_keeps_the_status_word(backend: Backend) -> None:
    planner, arena = planner_of(ROUND, backend), new_arena(backend)
    first = plan(planner, arena)
    compiles = planner.stats()["compiles"]
    word = first.status_word
    assert plan(planner, arena).status_word is word
    assert planner.stats()["compiles"] == compiles


@pytest.mark.parametrize("field", FIELDS)
def test_another_address_of_one_buffer_is_a_miss(field: str) -> None:
    planner, arena, other = planner_of(ROUND, HOST), new_arena(), new_arena()
    first = plan(planner, arena)
    buffers = [arena.step(0), {**arena.step(1), field: other.step(1)[field]}]
    second = planner.plan([StepBuffers(offset, **b) for offset, b in zip((1, 2), buffers, strict=True)])
    assert second is not first
    assert counts(planner) == (0, 2)


@pytest.mark.parametrize("field", FIELDS)
def test_an_absent_buffer_is_a_miss(field: str) -> None:
    planner, arena = planner_of(ROUND, HOST), new_arena()
    plan(planner, arena)
    buffers = [{name: view for name, view in arena.step(step).items() if name != field} for step in range(2)]
    planner.plan([StepBuffers(offset, **b) for offset, b in zip((1, 2), buffers, strict=True)])
    assert counts(planner) == (0, 2)


def variants(memory: torch.Tensor) -> dict[str, torch.Tensor]:
    """Page tables of other shapes and strides at one address."""
    return {
        "plain": memory[:16].view(4, 4),
        "fewer columns": memory[:12].view(4, 3),
        "fewer rows": memory[:12].view(3, 4),
        "wider stride": memory[:20].view(4, 5)[:, :4],
        "one column": memory[:4].view(4, 1),
    }


def test_shape_and_stride_at_one_address_are_misses() -> None:
    planner = planner_of(ROUND, HOST)
    memory = torch.zeros(64, dtype=torch.int32)
    plans = {name: planner.plan([StepBuffers(1, page_table=view)]) for name, view in variants(memory).items()}
    assert len({id(p) for p in plans.values()}) == len(plans)
    assert counts(planner) == (0, len(plans))
    for name, view in variants(memory).items():
        assert planner.plan([StepBuffers(1, page_table=view)]) is plans[name]


def test_dtype_at_one_address_never_hits() -> None:
    """int32 and int64 at one address: the only field that may be int64 is another one."""
    planner = planner_of(ROUND, HOST)
    memory = torch.zeros(8, dtype=torch.int64)
    wide = planner.plan([StepBuffers(1, pending_ring_slots=memory[:4])])
    narrow = planner.plan([StepBuffers(1, write_locs=memory.view(torch.int32)[:4])])
    assert narrow is not wide
    assert counts(planner) == (0, 2)


def test_offsets_mode_padding_and_window_are_part_of_the_key() -> None:
    planner, arena = planner_of(ROUND, HOST), new_arena()
    plans = [
        plan(planner, arena),
        plan(planner, arena, (1, 3)),
        plan(planner, arena, (2, 1)),
        plan(planner, arena, padding="slot"),
        plan(planner, arena, mode="draft_extend"),
        plan(planner, arena, mode="target_verify", draft_token_num=2),
        plan(planner, arena, mode="target_verify", draft_token_num=4),
        planner.plan(step_buffers(arena, (1, 2))[:1]),
        planner.plan(step_buffers(arena, (1, 2))[::-1]),
    ]
    assert len({id(p) for p in plans}) == len(plans)
    assert counts(planner) == (0, len(plans))


def test_least_recently_used_plan_is_evicted(backend: Backend) -> None:
    planner = planner_of(ROUND, backend, cache_capacity=2)
    arenas = [new_arena(backend) for _ in range(3)]
    plan(planner, arenas[0])
    plan(planner, arenas[1])
    plan(planner, arenas[0])
    plan(planner, arenas[2])
    stats = planner.stats()
    assert (stats["cached"], stats["capacity"], stats["evictions"]) == (2, 2, 1)
    plan(planner, arenas[0])
    assert counts(planner) == (2, 3)
    plan(planner, arenas[1])
    assert counts(planner) == (2, 4)


def test_evicted_plan_still_runs(backend: Backend) -> None:
    planner = planner_of(ROUND, backend, cache_capacity=1)
    first = Harness(backend, ROUND, planner=planner)
    second = Harness(backend, ROUND, planner=planner)
    assert planner.stats()["evictions"] == 1
    first.refresh()
    second.refresh()


def test_cache_without_room_keeps_nothing() -> None:
    planner, arena = planner_of(ROUND, HOST, cache_capacity=0), new_arena()
    first = plan(planner, arena)
    assert plan(planner, arena) is not first
    assert planner.stats()["cached"] == 0
    first.run(**live_inputs(ROUND, "cpu"))
    arena.assert_holds(oracle.refresh(ROUND))


@pytest.mark.parametrize("capacity", [-1, 1.5, "2", None], ids=repr)
def test_cache_capacity_that_is_no_count(capacity: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        planner_of(ROUND, HOST, cache_capacity=capacity)
    assert "cache_capacity" in str(caught.value)


def test_dropping_a_plan_twice_and_a_stranger() -> None:
    planner, arena = planner_of(ROUND, HOST), new_arena()
    mine = plan(planner, arena)
    stranger = plan(planner_of(ROUND, HOST), arena)
    assert planner.drop(stranger) is False
    assert planner.drop(mine) is True
    assert planner.drop(mine) is False
    stats = planner.stats()
    assert (stats["dropped"], stats["cached"]) == (1, 0)
    assert plan(planner, arena) is not mine


def test_clear_forgets_every_plan_and_says_how_many() -> None:
    planner = planner_of(ROUND, HOST)
    arenas = [new_arena() for _ in range(3)]
    first = [plan(planner, arena) for arena in arenas]
    assert planner.clear() == 3
    assert planner.clear() == 0
    assert planner.stats()["cached"] == 0
    assert plan(planner, arenas[0]) is not first[0]


def test_dropped_plan_still_runs(backend: Backend) -> None:
    harness = Harness(backend, ROUND)
    harness.planner.drop(harness.plan)
    harness.refresh()
    harness.planner.clear()
    harness.refresh()


def test_plan_runs_without_its_planner(backend: Backend) -> None:
    arena = new_arena(backend)
    lonely = plan(planner_of(ROUND, backend), arena)
    gc.collect()
    lonely.run(**live_inputs(ROUND, backend.device))
    arena.assert_holds(oracle.refresh(ROUND))


class Memory:
    """A table and a buffer whose death can be seen."""

    def __init__(self, backend: Backend) -> None:
        self.table = torch.from_numpy(ROUND.table.copy()).to(backend.device)
        self.buffer = torch.zeros(ROWS, dtype=torch.int32, device=backend.device)
        self.planner = ReplayPlanner(
            RequestTable(self.table, compress_ratio=ROUND.ratio, page_size=ROUND.page), backend=backend.name
        )
        self.plan: ReplayPlan | None = self.planner.plan([StepBuffers(1, sequence_lengths=self.buffer)])
        self._watched = weakref.ref(self.buffer)

    def buffer_is_alive(self) -> bool:
        gc.collect()
        return self._watched() is not None


def test_cached_plan_keeps_its_tensors_alive(backend: Backend) -> None:
    """What a plan writes to can never be freed memory."""
    memory = Memory(backend)
    del memory.buffer
    assert memory.buffer_is_alive()
    memory.plan = None
    assert memory.buffer_is_alive()


def test_held_plan_keeps_its_tensors_alive(backend: Backend) -> None:
    memory = Memory(backend)
    del memory.buffer
    assert memory.plan is not None
    memory.planner.drop(memory.plan)
    assert memory.buffer_is_alive()
    memory.plan.run(**live_inputs(ROUND, backend.device))


@pytest.mark.parametrize("how", ["drop", "clear", "planner"])
def test_forgotten_plan_frees_its_tensors(backend: Backend, how: str) -> None:
    memory = Memory(backend)
    assert memory.plan is not None
    memory.plan.run(**live_inputs(ROUND, backend.device))
    memory.plan.explain()
    del memory.buffer
    if how == "drop":
        memory.planner.drop(memory.plan)
    elif how == "clear":
        memory.planner.clear()
    else:
        del memory.planner
    memory.plan = None
    assert not memory.buffer_is_alive()


def test_evicted_plan_frees_its_tensors() -> None:
    planner = planner_of(ROUND, HOST, cache_capacity=1)
    buffer = torch.zeros(ROWS, dtype=torch.int32)
    watched = weakref.ref(buffer)
    planner.plan([StepBuffers(1, sequence_lengths=buffer)])
    del buffer
    gc.collect()
    assert watched() is not None
    planner.plan([StepBuffers(1, sequence_lengths=torch.zeros(ROWS, dtype=torch.int32))])
    gc.collect()
    assert watched() is None


def test_planner_keeps_its_table_alive_and_lets_it_go() -> None:
    table = torch.from_numpy(ROUND.table.copy())
    watched = weakref.ref(table)
    request_table = RequestTable(table, compress_ratio=ROUND.ratio, page_size=ROUND.page)
    planner = ReplayPlanner(request_table, backend="host")
    arena = new_arena()
    held = plan(planner, arena)
    del table, request_table, planner
    gc.collect()
    assert watched() is not None
    held.run(**live_inputs(ROUND, "cpu"))
    arena.assert_holds(oracle.refresh(ROUND))
    del held
    gc.collect()
    assert watched() is None


def test_run_keeps_no_live_input() -> None:
    harness = Harness(HOST, ROUND)
    arguments = live_inputs(ROUND, "cpu")
    watched = [weakref.ref(arguments[name]) for name in ("seq_lens", "req_pool_indices")]
    harness.plan.run(**arguments)
    del arguments
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
