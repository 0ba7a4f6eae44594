"""Several plans in one call: the values of each, the launches, the order, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arena import Arena
from cases import random_table
from oracle import Round
from qsa_group import (
    CapacityError,
    JoinedPlan,
    LaunchError,
    LayoutError,
    PlanChangedError,
    ReplayPlan,
    ReplayPlanner,
    StepBuffers,
    _core,
    launchers,
)
from qsa_group.shapes import Shape, choose_shape, joined_shape
from strategies import HOSTILE_EXTENDS, HOSTILE_LENGTHS, HOSTILE_SLOTS, Inputs, clip
from support import HOST, Backend, Harness, live_inputs, mode_arguments, planner_of, step_buffers

TABLE = random_table(np.random.default_rng(23), 12, 512, 64)
DRAFT = Round(TABLE, [60, 100, 250, 7], [1, 2, 3, 4], rows=6, offsets=[1, 2])
VERIFY = DRAFT.but(mode="target_verify", draft_token_num=3, rows=13, offsets=[1])
EXTEND = DRAFT.but(mode="draft_extend", extend_lens=[3, 0, 2, 9], rows=15, offsets=[1])
WHOLE = (EXTEND, DRAFT, VERIFY)


class Together:
    """Joined plans over one table, each with poisoned buffers of its own."""

    def __init__(self, backend: Backend, rounds: Sequence[Round], **form: Any) -> None:
        self.backend, self.rounds = backend, tuple(rounds)
        self.planner = planner_of(rounds[0], backend)
        self.members = [Harness(backend, round_, planner=self.planner, **form) for round_ in rounds]
        self.plan: JoinedPlan = self.planner.join([member.plan for member in self.members])

    def arguments(self, rounds: Sequence[Round], how: Inputs | None = None) -> dict[str, Any]:
        """One live batch: that of the round with extend lengths, if there is one."""
        widest = next((round_ for round_ in rounds if round_.extend_lens is not None), rounds[0])
        return live_inputs(widest, self.backend.device, how)

    def refresh(self, rounds: Sequence[Round] | None = None, how: Inputs | None = None) -> None:
        """One run over poison; every plan's buffers and status must be the oracle's."""
        rounds = rounds or self.rounds
        for member in self.members:
            member.arena.poison()
        self.plan.reset_status()
        self.plan.run(**self.arguments(rounds, how))
        outcomes = [member.check(round_) for member, round_ in zip(self.members, rounds, strict=True)]
        wanted = 0
        for outcome in outcomes:
            wanted |= outcome.status
        assert int(self.plan.status()) == wanted


def live(rounds: Sequence[Round], lens: list[int], slots: list[int], extend: list[int]) -> list[Round]:
    """The rounds with another live batch."""
    return [
        round_.but(seq_lens=lens, slots=slots, extend_lens=None if round_.extend_lens is None else extend)
        for round_ in rounds
    ]


@pytest.mark.parametrize("rounds", [(DRAFT, VERIFY), (VERIFY, EXTEND), (EXTEND, DRAFT), WHOLE], ids=lambda r: r[0].mode)
def test_every_plan_is_refreshed(backend: Backend, rounds: tuple[Round, ...]) -> None:
    together = Together(backend, rounds)
    together.refresh()
    together.refresh(live(rounds, [511, 3, 0, 510], [4, 11, 2, 99], [2, -1, 0, 600]))
    assert together.plan.plans == tuple(member.plan for member in together.members)


def test_padding_of_either_kind(backend: Backend) -> None:
    """A join may hold plans of both rules; each goes by its own."""
    rounds = [round_.but(padding=padding) for round_, padding in zip(WHOLE, ("slot", "count", "slot"), strict=True)]
    together = Together(backend, rounds, page_gap=3, shift=1)
    for padding in (0, 1, 4, 9):
        batch = live(rounds, [5, 70, 133, 64], [0, 3, 4, 0], [1, 2, 3, 4])
        together.refresh([round_.but(num_padding=padding) for round_ in batch])


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
        member.check()


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_three_groups_a_launch(backend: Backend, count: int) -> None:
    """Whatever is more goes into further launches, a group that is left over into one of its own."""
    rounds = [DRAFT.but(rows=6 + more, offsets=[1, 2, 3][: 1 + more % 3]) for more in range(count)]
    together = Together(backend, rounds)
    together.refresh()
    if backend.name == "host":
        return
    assert [len(launch) for launch in together.plan.launches] == {2: [2], 3: [3], 4: [3, 1], 7: [3, 3, 1]}[count]
    splits = together.plan.explain().data["splits"]
    assert [(s["plan"], s["field"], s["value"], s["other"]) for s in splits] == [
        (plan, "launch size", "4", "3") for plan in range(3, count, 3)
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
    verify.check()
    for step, (arena, columns) in enumerate(zip(arenas, (8, 5), strict=True)):
        Harness.check_arena(arena, DRAFT.but(offsets=[step + 1], max_pages=columns))
    if backend.name != "host":
        assert joined.launches == (((0, 0), (0, 1), (1, 0)),)


def test_shared_memory_keeps_its_order(backend: Backend) -> None:
    """Two plans write the same buffers: two launches, and what the last one wrote stands."""
    # No offset reaches a further page, so that nothing of the first plan stays behind.
    round_ = DRAFT.but(seq_lens=[50, 100, 240, 7])
    planner = planner_of(round_, backend)
    arena = Arena(2, 6, 4, round_.page_columns, backend.device)
    first = planner.plan(step_buffers(arena, [1, 2]))
    last = planner.plan(step_buffers(arena, [3, 5]))
    joined = planner.join([first, last])
    assert joined.launches == (((0, 0),), ((1, 0),))
    if backend.name != "host":
        (split,) = joined.explain().data["splits"]
        assert (split["field"], split["plan"], split["group"]) == ("overlap", 1, 0)
        assert split["value"] == "sequence_lengths of plan 1, group 0"
        assert split["other"] == "sequence_lengths of plan 0, group 0"
        assert "cannot share the launch before: overlap is sequence_lengths of plan 1" in joined.explain()
    joined.run(**live_inputs(round_, backend.device))
    Harness.check_arena(arena, round_.but(offsets=[3, 5]))
    arena.poison()
    planner.join([last, first]).run(**live_inputs(round_, backend.device))
    Harness.check_arena(arena, round_)


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
    rounds = [round_.but(num_padding=padding) for round_ in live(WHOLE, batch.lens, batch.slots, batch.extend)]
    if batch.lens:
        together.refresh(rounds, batch.how)
        return
    for member in together.members:
        member.arena.poison()
    together.plan.run(**together.arguments(rounds, batch.how))
    for member in together.members:
        member.arena.assert_untouched()


def test_input_that_is_an_output(backend: Backend) -> None:
    """The plans run one after the other then, and the later one sees what the earlier one wrote, as without a join."""
    results = []
    for joined in (True, False):
        planner = planner_of(DRAFT, backend)
        draft, verify = (Harness(backend, round_, planner=planner) for round_ in (DRAFT, VERIFY))
        seq_lens = draft.arena.step(0)["sequence_lengths"][:4]
        seq_lens.copy_(torch.tensor(DRAFT.seq_lens))
        slots = live_inputs(DRAFT, backend.device)["req_pool_indices"]
        if joined:
            plan = planner.join([draft.plan, verify.plan])
            plan.run(seq_lens, slots)
            data = plan.explain().data
            assert (data["runs"], data["overlap_runs"], data["hooked_runs"]) == (
                1,
                0 if backend.name == "host" else 1,
                0,
            )
            assert planner.stats()["runs"] == 2, "the plans ran by themselves"
        else:
            draft.plan.run(seq_lens, slots)
            verify.plan.run(seq_lens, slots)
        results.append((draft.arena.memory.clone(), verify.arena.memory.clone()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("rounds", "given", "error"),
    [
        ((DRAFT, VERIFY), EXTEND, PlanChangedError),
        ((DRAFT, EXTEND), DRAFT, PlanChangedError),
        ((DRAFT, VERIFY), DRAFT.but(seq_lens=[5] * 5, slots=[1] * 5), CapacityError),
    ],
    ids=["extend lengths for nobody", "no extend lengths", "only the last bucket is too small"],
)
def test_a_refused_call_writes_nothing(
    backend: Backend, rounds: tuple[Round, ...], given: Round, error: type[Exception]
) -> None:
    together = Together(backend, rounds)
    with pytest.raises(error, match=r"plans\[[01]\]: "):
        together.plan.run(**live_inputs(given, backend.device))
    for member in together.members:
        member.arena.assert_untouched()
    assert together.planner.stats()["launches"] == 0


def test_what_cannot_be_joined() -> None:
    one, other = (Harness(HOST, DRAFT) for _ in range(2))
    beside = ReplayPlanner(one.planner.table)
    cases: list[tuple[Any, str]] = [
        ([], "plans has length 0, must be at least 2"),
        ([one.plan], "plans has length 1, must be at least 2"),
        (None, "plans has type NoneType, must be a sequence of ReplayPlan"),
        ([one.plan, "plan"], r"plans\[1\] has type str, must be ReplayPlan"),
        ([one.plan, other.plan], r"plans\[1\] was planned over RequestTable\(.*\) by another planner"),
        ([other.plan, one.plan], r"plans\[0\] was planned over"),
        ([one.plan, beside.plan(step_buffers(other.arena, [1, 2]))], r"plans\[1\] was planned over"),
    ]
    for plans, message in cases:
        with pytest.raises(LayoutError, match=message) as caught:
            one.planner.join(plans)
        assert caught.value.field == "plans"


def _stubbed(driver: str) -> tuple[JoinedPlan, list[ReplayPlan], Any]:
    planner = planner_of(DRAFT, Backend("direct", "cpu"), _driver=driver)
    plans = []
    for round_ in WHOLE:
        arena = Arena(round_.steps, round_.rows, 4, round_.page_columns)
        plans.append(planner.plan(step_buffers(arena, round_.offsets), **mode_arguments(round_)))
    return planner.join(plans), plans, planner


def test_launches_are_counted() -> None:
    """One launch instead of three, by a stand-in for the driver."""
    joined, _plans, planner = _stubbed("stub")
    arguments = live_inputs(EXTEND, "cpu")
    for _ in range(3):
        joined.run(**arguments)
    stats = planner.stats()
    assert (stats["runs"], stats["launches"], stats["step_refreshes"]) == (3, 3, 12)
    explained = joined.explain()
    assert (explained.data["launches"], explained.data["launches_apart"], explained.data["runs"]) == (1, 3, 3)
    assert "1 launch instead of 3" in explained
    assert explained.data["fallbacks"] == []
    assert "draft_extend + decode + target_verify" in repr(joined)


def test_a_join_that_saves_no_launch_says_so() -> None:
    explained = str(Together(HOST, (DRAFT, VERIFY)).plan.explain())
    assert "2 launches, as many as apart" in explained.splitlines()[0]


def test_a_failing_launch_raises() -> None:
    joined, _plans, planner = _stubbed("stub-fail")
    with pytest.raises(LaunchError):
        joined.run(**live_inputs(EXTEND, "cpu"))
    assert planner.stats()["launches"] == 0


def test_empty_buckets_are_no_launches() -> None:
    """Nothing is started for them, so nothing is counted."""
    planner = planner_of(DRAFT, Backend("direct", "cpu"), _driver="stub")
    plans = []
    for round_ in (EXTEND, EXTEND.but(extend_lens=[1, 1, 1, 1])):
        arena = Arena(1, 0, 4, round_.page_columns)
        plans.append(planner.plan(step_buffers(arena, [1]), "draft_extend"))
    for plan in (*plans, planner.join(plans)):
        plan.run(**live_inputs(EXTEND, "cpu"))
    stats = planner.stats()
    assert (stats["runs"], stats["launches"], stats["step_refreshes"]) == (3, 0, 0)


def test_set_hooks_run_the_plans_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler sees each plan's launches by Triton's launcher, as without the join."""
    hooks: list[Any] = []
    monkeypatch.setattr(launchers, "hook_lists", lambda: [hooks])
    joined, plans, planner = _stubbed("stub")
    monkeypatch.setattr(joined._blueprint, "hooks", [hooks])
    joined = JoinedPlan(joined._blueprint, planner._cache)
    seen: list[ReplayPlan] = []
    for plan in plans:
        monkeypatch.setattr(plan, "run", lambda *_, plan=plan: seen.append(plan), raising=False)
    hooks.append(print)
    joined.run(**live_inputs(EXTEND, "cpu"))
    assert seen == plans
    (fallback,) = joined.explain().data["fallbacks"]
    assert fallback.startswith("in 1 of 1 runs Triton launch hooks were set")
    hooks.clear()
    joined.run(**live_inputs(EXTEND, "cpu"))
    assert (len(seen), planner.stats()["launches"]) == (3, 1)


@pytest.mark.parametrize("refused", ["the joined kernel", "a plan"])
def test_what_must_not_be_started_directly_is_triton_s(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Every launch of it, all loaded for Triton's launcher; `explain` says why."""
    loads: list[tuple[int, bool]] = []
    load = launchers.load_kernel

    def refusing(variant: Any, device: Any, driver: str, *, by_triton: bool = False) -> tuple[Any, Any]:
        loads.append((len(variant.groups), by_triton))
        wanted = 3 if refused == "the joined kernel" else 1
        if by_triton or len(variant.groups) == wanted:
            return object(), "it is odd"
        return load(variant, device, driver)

    monkeypatch.setattr(launchers, "load_kernel", refusing)
    planner = planner_of(DRAFT, Backend("direct", "cpu"), _driver="stub")
    rounds = (*WHOLE, DRAFT.but(rows=9))
    arenas = [Arena(one.steps, one.rows, 4, one.page_columns) for one in rounds]
    plans = [
        planner.plan(step_buffers(arena, one.offsets), **mode_arguments(one))
        for arena, one in zip(arenas, rounds, strict=True)
    ]
    assert {plan.backend for plan in plans} == {"direct" if refused == "the joined kernel" else "triton"}
    loads.clear()
    joined = planner.join(plans)
    assert (joined.backend, [len(launch) for launch in joined.launches]) == ("triton", [3, 1])
    assert {groups for groups, by_triton in loads if by_triton} == {3, 1}
    assert joined.explain().data["fallbacks"] == ["not started directly but by Triton's launcher: it is odd"]


def test_moved_memory_is_noticed_before_anything_is_written() -> None:
    together = Together(HOST, (DRAFT, VERIFY))
    together.members[1].arena.memory.share_memory_()
    together.members[0].arena.poison()
    with pytest.raises(PlanChangedError, match=r"plans\[1\]: .*share_memory_"):
        together.plan.run(**together.arguments(together.rounds))
    together.members[0].arena.assert_untouched()


def test_the_same_plan_twice(backend: Backend) -> None:
    """Its memory is shared with itself: two launches that write the same."""
    harness = Harness(backend, DRAFT)
    joined = harness.planner.join([harness.plan, harness.plan])
    assert joined.launches == (((0, 0),), ((1, 0),))
    joined.run(**live_inputs(DRAFT, backend.device))
    harness.check()


def test_joins_run_from_several_threads() -> None:
    """Nothing of a join is changed by a call but its counters."""
    joined, _plans, planner = _stubbed("stub")
    arguments = live_inputs(EXTEND, "cpu")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [joined.run(**arguments) for _ in range(200)], range(4)))
    assert (planner.stats()["launches"], joined.explain().data["runs"]) == (800, 800)


def test_the_core_joins_groups_of_its_own_plans_only() -> None:
    assert _core.join_groups([]) == ([], [])


def test_the_host_says_so() -> None:
    together = Together(HOST, WHOLE)
    together.refresh()
    data = together.plan.explain().data
    assert data["backend"] == "host"
    assert data["fallbacks"] == ["the host runs the plans one after the other"]
    assert data["launches"] == data["launches_apart"] == 3
    assert data["runs"] == 1
    assert together.planner.stats()["runs"] == 3


def test_the_planners_own_fallbacks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is no better backend is as true of a join as of its plans."""
    monkeypatch.setattr("qsa_group.planner._resolve", lambda *_: ("host", ["no kernel: a reason"]))
    together = Together(HOST, (DRAFT, VERIFY))
    assert together.plan.explain().data["fallbacks"] == [
        "no kernel: a reason",
        "the host runs the plans one after the other",
    ]


@pytest.mark.parametrize("shape", [Shape(2, 2, 1, 1), Shape(2, 1, 4, 4), Shape(16, 2, 2, 1)], ids=str)
def test_programs_of_any_shape(backend: Backend, monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    """Several programs a row, several rows a program, and rows that need the loop."""
    if backend.name == "host":
        pytest.skip("the host executor is not cut up")
    monkeypatch.setattr("qsa_group.joined.joined_shape", lambda mode, num_steps, rows, max_pages: shape)
    together = Together(backend, WHOLE)
    together.refresh()
    together.refresh(live(WHOLE, [511, 300, 65, 510], [4, 11, 2, 1], [2, 1, 0, 4]))


def test_the_rule_covers_every_page() -> None:
    """By programs of the same warps, whatever the mode."""
    assert len({joined_shape(mode, 7, 8, 64).num_warps for mode in ("decode", "target_verify", "draft_extend")}) == 1
    for mode, rows, pages in product(
        ("decode", "target_verify", "draft_extend"), (1, 2, 8, 9, 64, 4096), (0, 1, 127, 4096, 1 << 20)
    ):
        shape, usual = joined_shape(mode, 7, rows, pages), choose_shape(mode, 7, rows, pages)
        assert shape.lanes.bit_count() == 1
        assert shape.lanes >= min(shape.block, pages)
        assert shape.lanes >= shape.block or mode != "draft_extend"
        assert shape == usual or mode == "draft_extend"


def test_joined_plans_keep_their_plans() -> None:
    """Who holds the join needs to hold nothing else."""
    together = Together(HOST, (DRAFT, VERIFY))
    joined, arenas = together.plan, [member.arena for member in together.members]
    together.planner.clear()
    del together
    for arena in arenas:
        arena.poison()
    joined.run(**live_inputs(DRAFT, "cpu"))
    for arena, round_ in zip(arenas, (DRAFT, VERIFY), strict=True):
        Harness.check_arena(arena, round_)
