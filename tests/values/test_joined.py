"""Several plans in one call: the values of each, the launches, the order, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import (
    HOST,
    Backend,
    Harness,
    live_inputs,
    planner_of,
    step_buffers,
    tiled,
)
from helpers.oracle import Case
from helpers.strategies import HOSTILE_EXTENDS, HOSTILE_LENGTHS, HOSTILE_SLOTS, Inputs, clip
from qsa_group import (
    CapacityError,
    PlanChangedError,
    ReplayPlan,
    ReplayPlanner,
    StepBuffers,
)
from qsa_group.kernel import Tiling

TABLE = random_table(np.random.default_rng(23), 12, 512, 64)
DRAFT = Case(TABLE, [60, 100, 250, 7], [1, 2, 3, 4], rows=6, offsets=[1, 2])
VERIFY = DRAFT.but(mode="target_verify", draft_token_num=3, rows=13, offsets=[1])
EXTEND = DRAFT.but(mode="draft_extend", extend_lens=[3, 0, 2, 9], rows=15, offsets=[1])
WHOLE = (EXTEND, DRAFT, VERIFY)


class Together:
    """Joined plans over one table, each with poisoned buffers of its own."""

    def __init__(
        self, backend: Backend, cases: Sequence[Case], planner: ReplayPlanner | None = None, **form: Any
    ) -> None:
        self.backend, self.cases = backend, tuple(cases)
        self.planner = planner or planner_of(cases[0], backend)
        self.members = [Harness(backend, case, planner=self.planner, **form) for case in cases]
        self.plan: ReplayPlan = self.planner.join([member.plan for member in self.members])

    def arguments(self, cases: Sequence[Case], how: Inputs | None = None) -> dict[str, Any]:
        """One live batch: that of the round with extend lengths, if there is one."""
        widest = next((case for case in cases if case.extend_lens is not None), cases[0])
        return live_inputs(widest, self.backend.device, how)

    def refresh(self, cases: Sequence[Case] | None = None, how: Inputs | None = None) -> None:
        """One run over poison. Every plan's buffers, and the status of them all, must be the oracle's."""
        cases = cases or self.cases
        for member in self.members:
            member.arena.poison()
        self.plan.reset_status()
        self.plan.run(**self.arguments(cases, how))
        wanted = 0
        for member, case in zip(self.members, cases, strict=True):
            wanted |= Harness.check_arena(member.arena, case).status
            assert int(member.plan.status()) == 0, "the joined plan has a status word of its own"
        assert int(self.plan.status()) == wanted


def live(cases: Sequence[Case], lens: list[int], slots: list[int], extend: list[int]) -> list[Case]:
    """The cases with another live batch."""
    return [
        case.but(seq_lens=lens, slots=slots, extend_lens=None if case.extend_lens is None else extend) for case in cases
    ]


@pytest.mark.parametrize("cases", [(DRAFT, VERIFY), (VERIFY, EXTEND), (EXTEND, DRAFT), WHOLE], ids=lambda r: r[0].mode)
def test_every_plan_is_refreshed(backend: Backend, cases: tuple[Case, ...]) -> None:
    together = Together(backend, cases)
    together.refresh()
    together.refresh(live(cases, [511, 3, 0, 510], [4, 11, 2, 99], [2, -1, 0, 600]))
    assert together.plan.steps == tuple(step for member in together.members for step in member.plan.steps)
    assert together.plan.mode == " + ".join(case.mode for case in cases)


def test_padding_of_either_kind(backend: Backend) -> None:
    """A join may hold plans of both rules; each goes by its own."""
    cases = [case.but(padding=padding) for case, padding in zip(WHOLE, ("slot", "count", "slot"), strict=True)]
    together = Together(backend, cases, page_gap=3, shift=1)
    for padding in (0, 1, 4, 9):
        batch = live(cases, [5, 70, 133, 64], [0, 3, 4, 0], [1, 2, 3, 4])
        together.refresh([case.but(num_padding=padding) for case in batch])


def test_buckets_and_buffers_of_any_kind(backend: Backend) -> None:
    """Other rows, page tables and buffers a plan, with and without page tables."""
    planner = planner_of(DRAFT, backend)
    few = ("sequence_lengths", "row_req_pool_indices", "logical_positions")
    members = [
        Harness(backend, DRAFT.but(rows=40, offsets=[1, 2, 3], max_pages=5), planner=planner),
        Harness(backend, VERIFY, planner=planner, fields=few),
        Harness(backend, EXTEND.but(max_pages=0), planner=planner),
    ]
    joined = planner.join([member.plan for member in members])
    joined.run(**live_inputs(EXTEND, backend.device))
    for member in members:
        Harness.check_arena(member.arena, member.case)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_three_groups_a_launch(backend: Backend, count: int) -> None:
    """Whatever is more goes into further launches, a group that is left over into one of its own."""
    cases = [DRAFT.but(rows=6 + more, offsets=[1, 2, 3][: 1 + more % 3]) for more in range(count)]
    together = Together(backend, cases)
    together.refresh()
    assert [len(launch) for launch in together.plan.launches] == {2: [2], 3: [3], 4: [3, 1], 7: [3, 3, 1]}[count]
    firsts = [group[0] for group in together.plan.groups]
    splits = together.plan.explain().data["splits"]
    assert [(s["step"], s["group_of"], s["field"], s["value"], s["other"]) for s in splits] == [
        (firsts[plan], firsts[plan - 3], "launch size", "4", "3") for plan in range(3, count, 3)
    ]


def test_groups_of_one_plan_join_too(backend: Backend) -> None:
    """Steps that could not share a group because their page tables differ can still share a launch."""
    planner = planner_of(DRAFT, backend)
    arenas = [Arena(1, 6, 4, columns, backend.device) for columns in (8, 5)]
    steps = [StepBuffers(offset=step + 1, **arena.step(0)) for step, arena in enumerate(arenas)]
    split = planner.plan(steps)
    assert len(split.groups) == 2
    verify = Harness(backend, VERIFY, planner=planner)
    joined = planner.join([split, verify.plan])
    joined.run(**live_inputs(DRAFT, backend.device))
    Harness.check_arena(verify.arena, VERIFY)
    for step, (arena, columns) in enumerate(zip(arenas, (8, 5), strict=True)):
        Harness.check_arena(arena, DRAFT.but(offsets=[step + 1], max_pages=columns))
    assert (joined.groups, joined.launches) == (((0,), (1,), (2,)), ((0, 1, 2),))


def test_shared_memory_keeps_its_order(backend: Backend) -> None:
    """Two plans write the same buffers: two launches, and what the last one wrote stands."""
    # No offset reaches a further page, so that nothing of the first plan stays behind.
    case = DRAFT.but(seq_lens=[50, 100, 240, 7])
    planner = planner_of(case, backend)
    arena = Arena(2, 6, 4, case.page_columns, backend.device)
    first = planner.plan(step_buffers(arena, [1, 2]))
    last = planner.plan(step_buffers(arena, [3, 5]))
    joined = planner.join([first, last])
    assert joined.launches == ((0,), (1,))
    (split,) = joined.explain().data["splits"]
    assert (split["field"], split["step"], split["group_of"]) == ("overlap", 2, 0)
    assert (split["value"], split["other"]) == ("sequence_lengths of step 2", "sequence_lengths of step 0")
    assert "step 2 cannot share the launch of step 0: overlap is sequence_lengths of step 2" in joined.explain()
    joined.run(**live_inputs(case, backend.device))
    Harness.check_arena(arena, case.but(offsets=[3, 5]))
    arena.poison()
    planner.join([last, first]).run(**live_inputs(case, backend.device))
    Harness.check_arena(arena, case)


@dataclass(frozen=True)
class Live:
    """A live batch of any numbers."""

    lens: list[int]
    slots: list[int]
    extend: list[int]
    how: Inputs


@st.composite
def batches(draw: st.DrawFn) -> Live:
    """Up to four requests, hostile numbers among them."""
    count = draw(st.integers(0, 4))
    how = Inputs(*(draw(st.sampled_from((torch.int32, torch.int64))) for _ in range(3)))

    def some(usual: st.SearchStrategy[int], hostile: Sequence[int], dtype: torch.dtype) -> list[int]:
        values = st.one_of(usual, usual, st.sampled_from(hostile))
        return clip(draw(st.lists(values, min_size=count, max_size=count)), dtype)

    return Live(
        some(st.integers(0, 515), HOSTILE_LENGTHS, how.lens_dtype),
        some(st.integers(0, 12), HOSTILE_SLOTS, how.slot_dtype),
        some(st.integers(0, 5), HOSTILE_EXTENDS, how.extend_dtype),
        how,
    )


_together: dict[Backend, Together] = {}


@given(batch=batches(), padding=st.integers(-1, 5))
def test_any_batch(backend: Backend, batch: Live, padding: int) -> None:
    if backend not in _together:
        _together[backend] = Together(backend, WHOLE)
    together = _together[backend]
    cases = [case.but(num_padding=padding) for case in live(WHOLE, batch.lens, batch.slots, batch.extend)]
    if batch.lens:
        together.refresh(cases, batch.how)
        return
    for member in together.members:
        member.arena.poison()
    together.plan.run(**together.arguments(cases, batch.how))
    for member in together.members:
        member.arena.assert_untouched()


def test_input_that_is_an_output(backend: Backend) -> None:
    """The steps run one by one then, and a later step sees what an earlier step wrote, as without a join."""
    results = []
    for joined in (True, False):
        planner = planner_of(DRAFT, backend)
        draft, verify = (Harness(backend, case, planner=planner) for case in (DRAFT, VERIFY))
        seq_lens = draft.arena.step(0)["sequence_lengths"][:4]
        seq_lens.copy_(torch.tensor(DRAFT.seq_lens))
        slots = live_inputs(DRAFT, backend.device)["req_pool_indices"]
        if joined:
            plan = planner.join([draft.plan, verify.plan])
            plan.run(seq_lens, slots)
            data = plan.explain().data
            assert (data["runs"], data["overlap_runs"], data["hooked_runs"]) == (1, 1, 0)
            stats = planner.stats()
            assert (stats["runs"], stats["overlap_runs"], stats["launches"]) == (1, 1, 3), "a launch a step"
        else:
            draft.plan.run(seq_lens, slots)
            verify.plan.run(seq_lens, slots)
        results.append((draft.arena.memory.clone(), verify.arena.memory.clone()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("cases", "given", "error"),
    [
        ((DRAFT, VERIFY), EXTEND, PlanChangedError),
        ((DRAFT, EXTEND), DRAFT, PlanChangedError),
        ((DRAFT, VERIFY), DRAFT.but(seq_lens=[5] * 5, slots=[1] * 5), CapacityError),
    ],
    ids=["extend lengths for nobody", "no extend lengths", "only the last bucket is too small"],
)
def test_a_refused_call_writes_nothing(
    backend: Backend, cases: tuple[Case, ...], given: Case, error: type[Exception]
) -> None:
    together = Together(backend, cases)
    with pytest.raises(error):
        together.plan.run(**live_inputs(given, backend.device))
    for member in together.members:
        member.arena.assert_untouched()
    assert together.planner.stats()["launches"] == 0


def test_moved_memory_is_noticed_before_anything_is_written() -> None:
    together = Together(HOST, (DRAFT, VERIFY))
    together.members[1].arena.memory.share_memory_()
    together.members[0].arena.poison()
    with pytest.raises(PlanChangedError, match=r"in step 2.*share_memory_"):
        together.plan.run(**together.arguments(together.cases))
    together.members[0].arena.assert_untouched()


def test_the_same_plan_twice(backend: Backend) -> None:
    """Its memory is shared with itself: two launches that write the same."""
    harness = Harness(backend, DRAFT)
    joined = harness.planner.join([harness.plan, harness.plan])
    assert joined.launches == ((0,), (1,))
    joined.run(**live_inputs(DRAFT, backend.device))
    Harness.check_arena(harness.arena, DRAFT)


@pytest.mark.parametrize("tiling", [Tiling(2, 2, 1, 1), Tiling(2, 1, 4, 4), Tiling(16, 2, 2, 1)], ids=str)
def test_programs_of_any_tiling(backend: Backend, tiling: Tiling) -> None:
    """Several programs a row, several rows a program, and rows that need the loop."""
    together = Together(backend, WHOLE, tiled(DRAFT, backend, tiling))
    together.refresh()
    together.refresh(live(WHOLE, [511, 300, 65, 510], [4, 11, 2, 1], [2, 1, 0, 4]))


def test_joined_plans_keep_their_plans() -> None:
    """Who holds the join needs to hold nothing else."""
    together = Together(HOST, (DRAFT, VERIFY))
    joined, arenas = together.plan, [member.arena for member in together.members]
    together.planner.clear()
    del together
    for arena in arenas:
        arena.poison()
    joined.run(**live_inputs(DRAFT, "cpu"))
    for arena, case in zip(arenas, (DRAFT, VERIFY), strict=True):
        Harness.check_arena(arena, case)
