"""Tensors without memory, with other memory than planned, or with lazy signs: an error, or the planned memory."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.harness import Backend
from qsa_group import (
    CapacityError,
    LayoutError,
    PlanChangedError,
    ReplayPlan,
    ReplayPlanner,
    RequestTable,
    StepBuffers,
)

LENS, SLOTS = torch.tensor([100, 7, 1]), torch.tensor([3, 1, 2])


def table() -> RequestTable:
    return RequestTable(torch.zeros((4, 256), dtype=torch.int32), compress_ratio=4, page_size=64)


def plan_of(buffer: torch.Tensor, mode: str = "decode") -> ReplayPlan:
    return ReplayPlanner(table()).plan([StepBuffers(sequence_lengths=buffer)], mode=mode)


def poisoned(rows: int = 3) -> torch.Tensor:
    return torch.full((rows,), -7, dtype=torch.int32)


def freed() -> torch.Tensor:
    lens = LENS.clone()
    lens.untyped_storage().resize_(0)
    return lens


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize("without_memory", [freed, fake])
def test_live_input_without_memory(without_memory: object) -> None:
    buffer = poisoned()
    with pytest.raises(LayoutError) as caught:
        plan_of(buffer).run(without_memory(), SLOTS)  # type: ignore[operator]
    assert caught.value.field == "seq_lens"
    assert buffer.tolist() == [-7, -7, -7]


def test_buffer_and_table_without_memory() -> None:
    buffer = poisoned()
    buffer.untyped_storage().resize_(0)
    with pytest.raises(LayoutError, match="sequence_lengths has address 0"):
        plan_of(buffer)
    tokens = torch.zeros((4, 256), dtype=torch.int32)
    tokens.untyped_storage().resize_(0)
    with pytest.raises(LayoutError, match="req_to_token has address 0"):
        RequestTable(tokens, compress_ratio=4, page_size=64)


def test_planned_memory_stays_when_a_tensor_is_given_other_data() -> None:
    buffer = poisoned()
    planned = buffer.detach()
    plan = plan_of(buffer)
    buffer.data = torch.zeros(3, dtype=torch.int32)
    plan.run(LENS, SLOTS)
    assert planned.tolist() == [101, 8, 2]
    assert buffer.tolist() == [0, 0, 0]


@pytest.mark.parametrize("when", ["before the plan", "after the plan"])
def test_table_memory_stays_when_the_tensor_is_given_other_data(when: str) -> None:
    tokens = torch.arange(4 * 256, dtype=torch.int32).view(4, 256)
    planner, pages = ReplayPlanner(RequestTable(tokens, compress_ratio=4, page_size=64)), torch.full((3, 4), -7).int()
    if when == "before the plan":
        tokens.data = torch.zeros_like(tokens)
    plan = planner.plan([StepBuffers(page_table=pages)])
    tokens.data = torch.zeros_like(tokens)
    plan.run(LENS, SLOTS)
    assert pages.tolist() == [[12, 13, -7, -7], [4, -7, -7, -7], [8, -7, -7, -7]]


def test_lazily_negated_buffer() -> None:
    with pytest.raises(LayoutError, match="resolve_neg"):
        plan_of(torch._neg_view(poisoned()))


def test_bucket_of_no_rows_runs_nothing() -> None:
    plan = plan_of(poisoned(0), mode="draft_extend")
    plan.run(LENS, SLOTS, 0, torch.ones(3, dtype=torch.int32))
    assert plan.status() == 0


def test_draft_extend_batch_has_a_limit() -> None:
    many = torch.ones(1, dtype=torch.int32).expand((1 << 20) + 1)
    with pytest.raises(CapacityError) as caught:
        plan_of(poisoned(), mode="draft_extend").run(many, many, 0, many)
    assert (caught.value.name, caught.value.limit) == ("batch", 1 << 20)


def test_page_table_beside_the_table_in_one_allocation() -> None:
    """Column slices of one tensor interleave but share nothing; a true overlap is refused."""
    whole = torch.zeros((4, 256 + 8), dtype=torch.int32)
    planner = ReplayPlanner(RequestTable(whole[:, :256], compress_ratio=4, page_size=64))
    planner.plan([StepBuffers(page_table=whole[:, 256:])])
    with pytest.raises(LayoutError, match="apart from req_to_token"):
        planner.plan([StepBuffers(page_table=whole[:, 252:260])])


def test_explanation_can_be_copied_and_pickled() -> None:
    said = plan_of(poisoned()).explain()
    for again in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):
        assert (again, again.data) == (said, said.data)


@pytest.mark.parametrize("name", ["compress_ratio", "page_size"])
@pytest.mark.parametrize("value", [4.0, "4", None, 2**70, 2**40])
def test_table_numbers_that_are_no_small_integers(name: str, value: object) -> None:
    numbers = {"compress_ratio": 4, "page_size": 64, name: value}
    with pytest.raises(LayoutError) as caught:
        RequestTable(torch.zeros((4, 256), dtype=torch.int32), **numbers)  # type: ignore[arg-type]
    assert caught.value.field == name


@pytest.mark.parametrize("rows", [3, 1 << 18], ids=["on the heap", "mapped"])
@pytest.mark.parametrize("moved", ["sequence_lengths", "req_to_token", "status_word"])
def test_memory_that_moved_to_another_place(moved: str, rows: int) -> None:
    """Sharing a tensor with another process frees the memory that the plan has the address of."""
    held, buffer = table(), poisoned(rows)
    plan = ReplayPlanner(held).plan([StepBuffers(sequence_lengths=buffer)])
    tensor = {"sequence_lengths": buffer, "req_to_token": held.req_to_token, "status_word": plan.status_word}[moved]
    planned = tensor.data_ptr()
    tensor.share_memory_()
    with pytest.raises(PlanChangedError, match="plan again") as caught:
        plan.run(LENS, SLOTS)
    assert caught.value.field == moved
    assert hex(planned) in str(caught.value)
    assert hex(tensor.data_ptr()) in str(caught.value)
    assert set(buffer.tolist()) == {-7}


def test_buffer_where_the_table_stood() -> None:
    """Memory that a moved table leaves behind may be a buffer's next: the table is at fault, not the buffer."""
    place = np.zeros(4 * 256, dtype=np.int32)
    tokens = torch.from_numpy(place).view(4, 256)
    planner = ReplayPlanner(RequestTable(tokens, compress_ratio=4, page_size=64))
    tokens.share_memory_()
    buffer = torch.from_numpy(place)[:3]
    buffer.fill_(-7)
    with pytest.raises(PlanChangedError, match=r"req_to_token.*new RequestTable"):
        planner.plan([StepBuffers(sequence_lengths=buffer)])
    assert buffer.tolist() == [-7, -7, -7]


def test_plan_after_memory_moved() -> None:
    """A buffer is planned where it stands now. A table's address is as old as its `RequestTable`."""
    held, buffer = table(), poisoned()
    planner = ReplayPlanner(held)
    planner.plan([StepBuffers(sequence_lengths=buffer)])
    buffer.share_memory_()
    planner.plan([StepBuffers(sequence_lengths=buffer)]).run(LENS, SLOTS)
    assert buffer.tolist() == [101, 8, 2]
    held.req_to_token.share_memory_()
    with pytest.raises(PlanChangedError, match="new RequestTable"):
        planner.plan([StepBuffers(sequence_lengths=poisoned())])
    fresh = RequestTable(held.req_to_token, compress_ratio=4, page_size=64)
    ReplayPlanner(fresh).plan([StepBuffers(sequence_lengths=buffer)]).run(LENS[:2], SLOTS[:2])
    assert buffer.tolist() == [101, 8, 1]


def cpu_planner(backend: Backend, tokens: torch.Tensor) -> ReplayPlanner:
    if backend.device != "cpu":
        pytest.skip("torch moves memory on the host alone")
    return ReplayPlanner(RequestTable(tokens, compress_ratio=4, page_size=64), backend=backend.name)


def counts(planner: ReplayPlanner) -> dict[str, int]:
    return {name: planner.stats()[name] for name in ("plans", "hits", "misses", "dropped", "evictions", "cached")}


def test_another_buffer_where_a_cached_plans_buffer_stood(backend: Backend) -> None:
    """The plan of that place is of no more use to anyone: it is made anew, and found from then on."""
    planner = cpu_planner(backend, torch.zeros((4, 256), dtype=torch.int32))
    place = np.full(3, -7, dtype=np.int32)
    first = torch.from_numpy(place)
    stale = planner.plan([StepBuffers(sequence_lengths=first)])
    first.share_memory_()
    second = torch.from_numpy(place)
    fresh = planner.plan([StepBuffers(sequence_lengths=second)])
    fresh.run(LENS, SLOTS)
    assert (first.tolist(), second.tolist()) == ([-7, -7, -7], [101, 8, 2])
    assert counts(planner) == {"plans": 2, "hits": 0, "misses": 2, "dropped": 1, "evictions": 0, "cached": 1}
    assert planner.plan([StepBuffers(sequence_lengths=second)]) is fresh
    assert counts(planner) == {"plans": 2, "hits": 1, "misses": 2, "dropped": 1, "evictions": 0, "cached": 1}
    with pytest.raises(PlanChangedError, match="plan again"):
        stale.run(LENS, SLOTS)
    planner.plan([StepBuffers(sequence_lengths=first)]).run(LENS, SLOTS)
    assert first.tolist() == [101, 8, 2]


def test_memory_that_moved_is_named_with_its_step() -> None:
    first, second = poisoned(), poisoned()
    plan = ReplayPlanner(table()).plan(
        [StepBuffers(1, sequence_lengths=first), StepBuffers(2, sequence_lengths=second)]
    )
    second.share_memory_()
    with pytest.raises(PlanChangedError, match=r"sequence_lengths .*in step 1\b"):
        plan.run(LENS, SLOTS)
    assert first.tolist() == [-7, -7, -7]


def test_cached_plans_whose_status_words_moved(backend: Backend) -> None:
    """The words of several plans share a storage, and move together; the words of later plans move with them."""
    planner = cpu_planner(backend, torch.zeros((4, 256), dtype=torch.int32))
    buffers = [poisoned(), poisoned()]

    def plans() -> list[ReplayPlan]:
        return [planner.plan([StepBuffers(sequence_lengths=buffer)]) for buffer in buffers]

    stale = plans()
    stale[0].status_word.share_memory_()
    fresh = plans()
    assert counts(planner) == {"plans": 4, "hits": 0, "misses": 4, "dropped": 2, "evictions": 0, "cached": 2}
    fresh[0].run(LENS, torch.tensor([3, 4, 2]))
    fresh[1].run(LENS - 1, SLOTS)
    assert [buffer.tolist() for buffer in buffers] == [[101, 1, 2], [100, 7, 1]]
    assert [int(plan.status()) for plan in (*fresh, *stale)] == [1, 0, 0, 0]
    for plan in stale:
        with pytest.raises(PlanChangedError, match=r"status_word.*plan again"):
            plan.run(LENS, SLOTS)
    planner.join(plans()).run(LENS + 1, SLOTS)
    assert [buffer.tolist() for buffer in buffers] == [[102, 9, 3], [102, 9, 3]]


def test_plan_over_a_table_that_moved(backend: Backend) -> None:
    """A planner has one table, at one place: it says so each time, and the remedy works."""
    tokens, pages = torch.arange(4 * 256, dtype=torch.int32).view(4, 256), torch.full((3, 2), -7, dtype=torch.int32)
    planner = cpu_planner(backend, tokens)
    planner.plan([StepBuffers(page_table=pages)])
    tokens.share_memory_()
    for _ in range(2):
        with pytest.raises(PlanChangedError, match=r"req_to_token.*new RequestTable"):
            planner.plan([StepBuffers(page_table=pages)])
    assert counts(planner) == {"plans": 1, "hits": 0, "misses": 1, "dropped": 0, "evictions": 0, "cached": 1}
    tokens.add_(640)
    cpu_planner(backend, tokens).plan([StepBuffers(page_table=pages)]).run(LENS, SLOTS)
    assert pages.tolist() == [[22, 23], [14, -7], [18, -7]]
