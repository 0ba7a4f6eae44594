"""Which steps share a launch: properties of any list of steps, and the reason for each split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracle
from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import HOST, Backend, live_inputs, planner_of
from helpers.oracle import FIELDS, Case
from qsa_group import ReplayPlan, StepBuffers

BATCH, RATIO, PAGE = 3, 4, 8
ROUND = Case(
    random_table(np.random.default_rng(9), 6, 40, PAGE), [5, 17, 30], [1, 4, 2], rows=BATCH, ratio=RATIO, page=PAGE
)
ROWS, COLUMNS = (BATCH, BATCH + 2), (4, 5)
FIELD_SETS = (
    frozenset(FIELDS),
    frozenset(("sequence_lengths", "row_req_pool_indices", "logical_positions")),
    frozenset(FIELDS) - {"prefix_lengths"},
    frozenset(("page_table",)),
)


@dataclass(frozen=True)
class Step:
    """The form of one step; `shares` is an earlier step whose buffer of `shared` it writes too."""

    rows: int = BATCH
    columns: int = 5
    page_gap: int = 0
    ring_gap: int = 0
    fields: frozenset[str] = FIELD_SETS[0]
    offset: int = 1
    shares: int | None = None
    shared: str = "sequence_lengths"

    @property
    def key(self) -> tuple[object, ...]:
        """What steps of one launch must have in common."""
        pages = (self.columns, self.page_gap) if "page_table" in self.fields else None
        return self.rows, self.fields, pages, self.ring_gap if "ring_group_locs" in self.fields else None


class Steps:
    """Buffers of steps of any forms."""

    def __init__(self, steps: Sequence[Step], device: str = "cpu") -> None:
        self.steps = steps
        self.buffers: list[dict[str, torch.Tensor]] = []
        for step in steps:
            arena = Arena(
                1,
                step.rows,
                RATIO,
                step.columns,
                device,
                fields=step.fields,
                page_gap=step.page_gap,
                ring_gap=step.ring_gap,
            )
            self.buffers.append(arena.step(0))
            if step.shares is not None:
                other = self.buffers[step.shares]
                if step.shared in other and step.shared in step.fields:
                    mine = self.buffers[-1][step.shared]
                    if other[step.shared].shape == mine.shape and other[step.shared].stride() == mine.stride():
                        self.buffers[-1][step.shared] = other[step.shared]

    def overlap(self, first: int, second: int) -> bool:
        """Whether two steps have a buffer in common."""
        mine = {view.data_ptr() for view in self.buffers[first].values()}
        return any(view.data_ptr() in mine for view in self.buffers[second].values())

    def compatible(self, first: int, second: int) -> bool:
        """Whether two steps may share a launch."""
        return self.steps[first].key == self.steps[second].key and not self.overlap(first, second)

    def plan(self, order: Sequence[int] | None = None, backend: Backend = HOST) -> ReplayPlan:
        """The plan of these steps, in their own or another order."""
        order = range(len(self.steps)) if order is None else order
        return planner_of(ROUND, backend).plan([StepBuffers(self.steps[i].offset, **self.buffers[i]) for i in order])


@st.composite
def step_lists(draw: st.DrawFn, sharing: bool = True) -> list[Step]:
    """Up to nine steps of a few forms."""
    steps = []
    for index in range(draw(st.integers(1, 9))):
        shares = draw(st.integers(0, index - 1)) if sharing and index and draw(st.booleans()) else None
        steps.append(
            Step(
                rows=draw(st.sampled_from(ROWS)),
                columns=draw(st.sampled_from(COLUMNS)),
                page_gap=draw(st.sampled_from((0, 0, 3))),
                ring_gap=draw(st.sampled_from((0, 0, 1))),
                fields=draw(st.sampled_from(FIELD_SETS)),
                offset=draw(st.integers(0, 6)),
                shares=shares,
                shared=draw(st.sampled_from(("sequence_lengths", "page_table", "logical_positions"))),
            )
        )
    return steps


def position_of(groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """In which launch each step is."""
    return {step: position for position, group in enumerate(groups) for step in group}


@settings(max_examples=200)
@given(steps=step_lists())
def test_every_step_is_in_exactly_one_group(steps: list[Step]) -> None:
    groups = Steps(steps).plan().groups
    assert sorted(step for group in groups for step in group) == list(range(len(steps)))
    assert all(group == tuple(sorted(group)) and group for group in groups)


@settings(max_examples=200)
@given(steps=step_lists())
def test_members_of_a_group_are_compatible(steps: list[Step]) -> None:
    made = Steps(steps)
    for group in made.plan().groups:
        for first in group:
            for second in group:
                assert first == second or made.compatible(first, second), (group, first, second)


@settings(max_examples=200)
@given(steps=step_lists())
def test_overlapping_steps_keep_their_order(steps: list[Step]) -> None:
    made = Steps(steps)
    position = position_of(made.plan().groups)
    for second in range(len(steps)):
        for first in range(second):
            assert not made.overlap(first, second) or position[first] < position[second], (first, second)


@settings(max_examples=200)
@given(steps=step_lists(sharing=False), data=st.data())
def test_steps_that_share_nothing_are_grouped_by_form_alone_in_any_order(
    steps: list[Step], data: st.DataObject
) -> None:
    made = Steps(steps)
    order = data.draw(st.permutations(range(len(steps))))
    wanted: dict[tuple[object, ...], set[int]] = {}
    for index, step in enumerate(steps):
        wanted.setdefault(step.key, set()).add(index)
    partition = {frozenset(group) for group in wanted.values()}
    assert {frozenset(group) for group in made.plan().groups} == partition
    assert {frozenset(order[i] for i in group) for group in made.plan(order).groups} == partition


@settings(max_examples=100)
@given(steps=step_lists())
def test_a_compatible_step_is_only_kept_out_by_an_overlap(steps: list[Step]) -> None:
    """Two groups of one form exist only where an overlapping step forces a later launch."""
    made = Steps(steps)
    groups = made.plan().groups
    for later, group in enumerate(groups):
        for earlier in range(later):
            if steps[groups[earlier][0]].key == steps[group[0]].key:
                first = group[0]
                forced = any(
                    made.overlap(first, other) for before in groups[earlier:] for other in before if other < first
                )
                assert forced, (groups, earlier, later)


@settings(max_examples=200)
@given(steps=step_lists())
def test_every_split_has_a_reason_with_both_values(steps: list[Step]) -> None:
    made = Steps(steps)
    plan = made.plan()
    splits = plan.explain().data["splits"]
    position = position_of(plan.groups)
    leaders = {group[0]: at for at, group in enumerate(plan.groups)}
    for at, group in enumerate(plan.groups):
        named = {split["group_of"] for split in splits if split["step"] == group[0]}
        assert named == {earlier[0] for earlier in plan.groups[:at]}, "each group that a new one could have joined"
    text = str(plan.explain())
    for split in splits:
        assert set(split) == {"step", "group_of", "field", "value", "other"}
        assert position[split["step"]] > leaders[split["group_of"]]
        assert split["value"] != split["other"]
        for word in (split["field"], split["value"], split["other"]):
            assert isinstance(word, str)
            assert word
            assert word in text


@settings(max_examples=100)
@given(steps=step_lists())
def test_groups_of_any_form_give_the_values_of_single_steps(steps: list[Step]) -> None:
    made = Steps(steps)
    plan = made.plan()
    plan.run(**live_inputs(ROUND, "cpu"))
    last_writer = {view.data_ptr(): index for index, b in enumerate(made.buffers) for view in b.values()}
    for index, (step, buffers) in enumerate(zip(steps, made.buffers, strict=True)):
        outcome = oracle.refresh(ROUND.but(rows=step.rows, offsets=[step.offset], max_pages=step.columns))
        for name, view in buffers.items():
            if last_writer[view.data_ptr()] != index:
                continue
            if name == "page_table":
                for row, live in enumerate(outcome.steps[0].live):
                    assert view[row, : len(live)].tolist() == live
            else:
                assert view.tolist() == outcome.steps[0].values[name], (index, name)


@settings(max_examples=100)
@given(steps=step_lists(), calls=st.integers(1, 4))
def test_launches_and_step_refreshes_are_counted(steps: list[Step], calls: int) -> None:
    made = Steps(steps)
    planner = planner_of(ROUND, HOST)
    plan = planner.plan([StepBuffers(s.offset, **b) for s, b in zip(steps, made.buffers, strict=True)])
    for _ in range(calls):
        plan.run(**live_inputs(ROUND, "cpu"))
    stats = planner.stats()
    assert stats["runs"] == calls
    assert stats["launches"] == calls * len(plan.groups)
    assert stats["step_refreshes"] == calls * len(steps)
    data = plan.explain().data
    assert (data["launches"], data["step_by_step_launches"]) == (len(plan.groups), len(steps))
    assert [list(group) for group in plan.groups] == [list(group) for group in data["groups"]]


ONE_DIFFERENCE = {
    "rows": (Step(rows=BATCH + 2), "rows", "5", "3"),
    "page columns": (Step(columns=4), "page_table", "4", "5"),
    "page row stride": (Step(page_gap=3), "page_table", "8", "5"),
    "ring row stride": (Step(ring_gap=1), "ring_group_locs", "5", "4"),
    "absent buffer": (Step(fields=FIELD_SETS[2]), "prefix_lengths", "absent", "present"),
    "shared buffer": (Step(shares=0), "overlap", "sequence_lengths of step 1", "sequence_lengths of step 0"),
}


@pytest.mark.parametrize("name", ONE_DIFFERENCE)
def test_the_one_thing_that_differs_is_named_and_the_rest_is_grouped(backend: Backend, name: str) -> None:
    """The odd step is alone, and nobody else gives up grouping for it."""
    odd, field, value, other = ONE_DIFFERENCE[name]
    made = Steps([Step(), odd, Step(offset=2), Step(offset=3)], backend.device)
    plan = made.plan(backend=backend)
    assert plan.groups == ((0, 2, 3), (1,))
    (split,) = plan.explain().data["splits"]
    assert (split["step"], split["group_of"]) == (1, 0)
    assert split["field"].startswith(field)
    assert (split["value"], split["other"]) == (value, other)
    plan.run(**live_inputs(ROUND, backend.device))
    for index in (0, 2, 3) if odd.shares is None else (2, 3):
        offset = made.steps[index].offset
        assert made.buffers[index]["sequence_lengths"].tolist() == [n + offset for n in ROUND.seq_lens]


def test_a_plan_that_is_one_group_has_no_splits(backend: Backend) -> None:
    plan = Steps([Step(offset=i) for i in range(4)], backend.device).plan(backend=backend)
    assert plan.groups == ((0, 1, 2, 3),)
    data = plan.explain().data
    assert data["splits"] == []
    assert (data["backend"], data["mode"], data["padding"]) == (backend.name, "decode", "count")
    assert data["rows"] == [BATCH]
    assert str(data["device"]).startswith(backend.device)


def test_interleaved_column_slices_are_no_overlap() -> None:
    """Two page tables that are the left and the right half of one tensor."""
    both = torch.zeros((BATCH, 10), dtype=torch.int32)
    halves = [both[:, :5], both[:, 5:]]
    plan = planner_of(ROUND, HOST).plan([StepBuffers(i + 1, page_table=half) for i, half in enumerate(halves)])
    assert plan.groups == ((0, 1),)
    plan.run(**live_inputs(ROUND, "cpu"))
    for half, expected in zip(halves, oracle.refresh(ROUND.but(offsets=[1, 2], max_pages=5)).steps, strict=True):
        for row, live in enumerate(expected.live):
            assert half[row, : len(live)].tolist() == live


@pytest.mark.parametrize("shift", range(1, 5))
def test_column_slices_that_meet_are_an_overlap(shift: int) -> None:
    both = torch.zeros((BATCH, 10), dtype=torch.int32)
    plan = planner_of(ROUND, HOST).plan(
        [StepBuffers(1, page_table=both[:, :5]), StepBuffers(2, page_table=both[:, shift : shift + 5])]
    )
    assert plan.groups == ((0,), (1,))
    assert plan.explain().data["splits"][0]["field"] == "overlap"


def test_overlap_of_two_kinds_of_buffers() -> None:
    """Lengths of one step in the memory of another step's positions, by a single row."""
    memory = torch.zeros(2 * BATCH - 1, dtype=torch.int32)
    plan = planner_of(ROUND, HOST).plan(
        [StepBuffers(1, sequence_lengths=memory[:BATCH]), StepBuffers(1, sequence_lengths=memory[BATCH - 1 :])]
    )
    assert plan.groups == ((0,), (1,))
    wide = torch.zeros(2 * BATCH, dtype=torch.int64)
    steps = [
        StepBuffers(1, pending_ring_slots=wide[:BATCH], sequence_lengths=torch.zeros(BATCH, dtype=torch.int32)),
        StepBuffers(
            1,
            pending_ring_slots=wide[BATCH:],
            sequence_lengths=wide.view(torch.int32)[2 * BATCH - 1 : 3 * BATCH - 1],
        ),
    ]
    with pytest.raises(ValueError, match="step 1"):
        planner_of(ROUND, HOST).plan(steps)


def test_more_steps_than_one_launch_takes(backend: Backend) -> None:
    """A plan has no limit of steps, whatever one launch can hold."""
    count = 40 if backend == HOST else 34
    made = Steps([Step(offset=i % 7, fields=FIELD_SETS[1]) for i in range(count)], backend.device)
    plan = made.plan(backend=backend)
    assert 1 < len(plan.groups) < count
    assert sorted(step for group in plan.groups for step in group) == list(range(count))
    plan.run(**live_inputs(ROUND, backend.device))
    for step, buffers in zip(made.steps, made.buffers, strict=True):
        assert buffers["sequence_lengths"].tolist() == [n + step.offset for n in ROUND.seq_lens]
