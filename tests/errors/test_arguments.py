"""Bad lists of steps, modes, planners and tables: typed errors that say what is wrong and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.arena import Arena
from helpers.bad_input import (
    PAGE,
    RATIO,
    ROWS,
    assert_names_argument,
    assert_says,
    case_in,
    misaligned,
    plan_with,
    refuse_table,
)
from helpers.harness import HOST, Backend, Harness, mode_arguments, planner_of
from qsa_group import (
    CapacityError,
    LaunchError,
    LayoutError,
    PlanChangedError,
    QsaGroupError,
    ReplayPlanner,
    RequestTable,
    StepBuffers,
    UnsupportedError,
)
from qsa_group.launch import HostBackend, PlanInputs, Prepared


@pytest.mark.parametrize("steps", [[], ()], ids=["list", "tuple"])
def test_empty_list_of_steps(steps: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan(steps)
    assert caught.value.field == "steps"
    assert_says(caught.value, "steps", 0)


@pytest.mark.parametrize("steps", [[None], [{"offset": 1}], "steps"], ids=repr)
def test_steps_that_are_no_step_buffers(steps: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan(steps)
    assert (caught.value.step, caught.value.field) == (0, "steps")
    assert_says(caught.value, "step 0", "StepBuffers", type(steps[0]).__name__)


@pytest.mark.parametrize("steps", [None, 3, StepBuffers(1)], ids=["None", "3", "one step"])
def test_steps_that_are_no_list(steps: Any) -> None:
    with pytest.raises((LayoutError, TypeError)) as caught:
        planner_of(case_in(), HOST).plan(steps)
    assert_names_argument(caught.value, "steps")


@pytest.mark.parametrize("mode", ["verify", "", "Decode"])
def test_unknown_mode(mode: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        plan_with(mode=mode)
    assert caught.value.field == "mode"
    assert_says(caught.value, "mode", mode, "decode", "target_verify", "draft_extend")


@pytest.mark.parametrize("padding", ["none", "", "Slot"])
def test_unknown_padding_rule(padding: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        plan_with(padding=padding)
    assert caught.value.field == "padding"
    assert_says(caught.value, "padding", padding, "count", "slot")


@pytest.mark.parametrize("mode", ["decode", "draft_extend"])
def test_draft_token_num_where_it_does_not_belong(mode: str) -> None:
    with pytest.raises(LayoutError) as caught:
        plan_with(mode=mode, draft_token_num=2)
    assert caught.value.field == "draft_token_num"
    assert_says(caught.value, "draft_token_num", 2, "None")


@pytest.mark.parametrize("number", [None, 0, -1, 2**31], ids=repr)
def test_draft_token_num_missing_or_wrong(number: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        plan_with(mode="target_verify", draft_token_num=number)
    assert caught.value.field == "draft_token_num"
    assert_says(caught.value, "draft_token_num", number)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", None), ("mode", 0), ("padding", None), ("padding", 3), ("draft_token_num", "2")],
    ids=repr,
)
def test_plan_argument_of_a_wrong_type(name: str, value: Any) -> None:
    with pytest.raises((LayoutError, TypeError)) as caught:
        plan_with(**{"mode": "target_verify", name: value})
    assert_names_argument(caught.value, name)


@pytest.mark.parametrize("backend", ["cuda", "", None, 1], ids=repr)
def test_unknown_backend(backend: Any) -> None:
    table = RequestTable(torch.zeros((2, 8), dtype=torch.int32), compress_ratio=4, page_size=8)
    with pytest.raises(LayoutError) as caught:
        ReplayPlanner(table, backend=backend)
    assert caught.value.field == "backend"
    assert_says(caught.value, "backend", backend, "auto", "direct", "triton", "host")


def test_backend_that_needs_a_gpu_on_a_cpu_table() -> None:
    table = RequestTable(torch.zeros((2, 8), dtype=torch.int32), compress_ratio=4, page_size=8)
    with pytest.raises(UnsupportedError) as caught:
        ReplayPlanner(table, backend="direct")
    assert_says(caught.value, "direct", "cpu")


@pytest.mark.parametrize("table", [None, torch.zeros((2, 8), dtype=torch.int32)], ids=["None", "tensor"])
def test_planner_without_a_request_table(table: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        ReplayPlanner(table)
    assert_says(caught.value, "RequestTable", type(table).__name__)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32, torch.bool], ids=str)
def test_table_that_is_not_int32(dtype: torch.dtype) -> None:
    refuse_table(torch.zeros((4, 32), dtype=dtype), "req_to_token", str(dtype).removeprefix("torch."), "int32")


@pytest.mark.parametrize("shape", [(), (32,), (2, 2, 8), (0, 32), (4, 0)], ids=str)
def test_table_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    refuse_table(torch.zeros(shape, dtype=torch.int32), "req_to_token", str(list(shape)))


def test_table_whose_rows_share_memory() -> None:
    refuse_table(torch.zeros((1, 32), dtype=torch.int32).expand(4, 32), "req_to_token", "stride", 0, 32)
    refuse_table(torch.zeros(64, dtype=torch.int32).as_strided((4, 32), (8, 1)), "req_to_token", "stride", 8, 32)
    flat = torch.zeros(256, dtype=torch.int32)
    refuse_table(flat.as_strided((4, 5), (12, 3)), "req_to_token", "[12, 3]", "a row stride of at least 13", page=RATIO)
    refuse_table(flat.as_strided((3, 64), (1, 2)), "req_to_token", "[1, 2]", "a column stride of at least 3")


def test_table_that_is_no_tensor() -> None:
    for value in (None, [[0] * 32] * 4, np.zeros((4, 32), dtype=np.int32)):
        refuse_table(value, "req_to_token", type(value).__name__)


def test_table_that_is_sparse_or_off_its_element_size() -> None:
    refuse_table(torch.zeros((4, 32), dtype=torch.int32).to_sparse(), "req_to_token", "sparse")
    refuse_table(misaligned(128, torch.int32).view(4, 32), "req_to_token", "address", 4)


@pytest.mark.parametrize("ratio", [0, -1, -4])
def test_compress_ratio_below_one(ratio: Any) -> None:
    refuse_table(torch.zeros((4, 32), dtype=torch.int32), "compress_ratio", ratio, ratio=ratio)


@pytest.mark.parametrize(
    ("name", "value"), [("compress_ratio", "4"), ("compress_ratio", None), ("page_size", 8.5), ("ring_size", "8")]
)
def test_table_argument_of_a_wrong_type(name: str, value: Any) -> None:
    arguments = {"compress_ratio": RATIO, "page_size": PAGE, name: value}
    with pytest.raises((LayoutError, TypeError)) as caught:
        RequestTable(torch.zeros((4, 32), dtype=torch.int32), **arguments)
    assert_names_argument(caught.value, name)


@pytest.mark.parametrize("page", [0, -8, 6, 2])
def test_page_size_that_is_no_multiple_of_the_ratio(page: Any) -> None:
    refuse_table(torch.zeros((4, 32), dtype=torch.int32), "page_size", page, page=page)


@pytest.mark.parametrize("ring_size", [0, -4, 3, 2, 6, 1 << 31, 1 << 70, True, 4.0])
def test_ring_size_that_is_no_multiple_of_the_ratio(ring_size: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        RequestTable(torch.zeros((4, 32), dtype=torch.int32), compress_ratio=RATIO, page_size=PAGE, ring_size=ring_size)
    assert caught.value.field == "ring_size"


def test_ring_slots_past_int32() -> None:
    """Slots times ring size, not slots times ratio, must fit the entries of ring group locations."""
    ring_size = ((1 << 31) // 4 // RATIO) * RATIO
    table = RequestTable(
        torch.zeros((4, 32), dtype=torch.int32), compress_ratio=RATIO, page_size=PAGE, ring_size=ring_size
    )
    planner = ReplayPlanner(table)
    locations = torch.zeros((2, RATIO), dtype=torch.int32)
    with pytest.raises(LayoutError, match="ring slots 2147483648, must be at most 2147483647"):
        planner.plan([StepBuffers(ring_group_locs=locations)])
    planner.plan([StepBuffers(pending_ring_slots=torch.zeros(2, dtype=torch.int64))])


def test_table_on_a_device_that_cannot_be_read() -> None:
    with pytest.raises((LayoutError, UnsupportedError)) as caught:
        ReplayPlanner(
            RequestTable(torch.empty((4, 32), dtype=torch.int32, device="meta"), compress_ratio=RATIO, page_size=PAGE)
        )
    assert_says(caught.value, "meta")


def test_a_refused_plan_leaves_the_planner_usable() -> None:
    case = case_in()
    planner = planner_of(case, HOST)
    with pytest.raises(LayoutError):
        planner.plan([StepBuffers(-1, **Arena(1, ROWS, RATIO, 4).step(0))])
    assert planner.stats()["cached"] == 0
    Harness(HOST, case, planner=planner).refresh()


def test_every_error_is_of_this_package_and_of_a_builtin_kind() -> None:
    for kind in (LayoutError, CapacityError, PlanChangedError):
        assert {QsaGroupError, ValueError} <= set(kind.__mro__)
    assert {QsaGroupError, NotImplementedError} <= set(UnsupportedError.__mro__)
    assert {QsaGroupError, RuntimeError} <= set(LaunchError.__mro__)
    with pytest.raises(ValueError, match="mode"):
        plan_with(**mode_arguments(case_in().but(mode="other")))


@pytest.mark.parametrize(
    ("call", "field", "given"),
    [
        (lambda planner, steps: planner.plan(steps, None), "mode", "NoneType"),
        (lambda planner, steps: planner.plan(steps, padding=None), "padding", "NoneType"),
        (lambda planner, steps: planner.warmup(None), "num_steps", "None"),
        (lambda planner, steps: planner.warmup([1.5]), "num_steps", "1.5"),
        (lambda planner, steps: planner.warmup([]), "num_steps", "[]"),
        (lambda planner, steps: planner.warmup(17), "num_steps", "17"),
        (lambda planner, steps: planner.warmup(1, ["decode"]), "mode", "['decode']"),
        (lambda planner, steps: planner.warmup(1, buffers=None), "buffers", "None"),
        (lambda planner, steps: planner.warmup(1, buffers=["x", 1]), "buffers", "'x', 1"),
        (lambda planner, steps: ReplayPlanner(planner.table, cache_capacity=2**70), "cache_capacity", str(2**70)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_of_another_type_or_range(call: Any, field: str, given: str) -> None:
    harness = Harness(HOST, case_in())
    with pytest.raises(LayoutError) as caught:
        call(harness.planner, harness.plan.steps)
    assert caught.value.field == field
    assert_says(caught.value, field, given)
    harness.arena.assert_untouched()


def test_verify_rows_of_a_request_that_no_bucket_holds() -> None:
    """Every run would be refused for want of room, so the plan is."""
    steps = [StepBuffers(sequence_lengths=torch.zeros(8, dtype=torch.int32))]
    planner = planner_of(case_in(), HOST)
    with pytest.raises(LayoutError) as caught:
        planner.plan(steps, mode="target_verify", draft_token_num=9)
    assert caught.value.field == "draft_token_num"
    assert_says(caught.value, "draft_token_num", 9, 8, "step 0")
    planner.plan(steps, mode="target_verify", draft_token_num=8)


def test_ratio_past_what_the_kernel_has_lanes_for(backend: Backend) -> None:
    if backend != Backend("triton", "cpu"):
        pytest.skip("the interpreter's planner stands for all that start the kernel")
    ratio = 1 << 21
    table = RequestTable(torch.zeros((2, ratio), dtype=torch.int32), compress_ratio=ratio, page_size=ratio)
    ring = torch.full((1, ratio), -7, dtype=torch.int32)
    lengths = torch.full((1,), -7, dtype=torch.int32)
    planner = ReplayPlanner(table, backend="triton")
    with pytest.raises(LayoutError) as caught:
        planner.plan([StepBuffers(sequence_lengths=lengths, ring_group_locs=ring)])
    assert caught.value.field == "compress_ratio"
    assert_says(caught.value, ratio, 1 << 20, "host")
    planner.plan([StepBuffers(sequence_lengths=lengths)]).run(torch.tensor([5]), torch.tensor([1]))
    assert lengths.tolist() == [6]
    assert set(ring.flatten().tolist()) == {-7}


class NoLauncherBackend(HostBackend):
    """A backend whose launcher cannot start anything."""

    def prepare(self, inputs: PlanInputs) -> Prepared:
        return replace(super().prepare(inputs), launcher=42)


def test_launcher_that_cannot_start_is_refused_when_planning() -> None:
    table = RequestTable(torch.zeros((9, 256), dtype=torch.int32), compress_ratio=RATIO, page_size=PAGE)
    planner = ReplayPlanner(table, backend=NoLauncherBackend())
    with pytest.raises(LayoutError, match=r"launcher .*int.*start\(index, programs, words\)") as caught:
        planner.plan([StepBuffers(sequence_lengths=torch.zeros(2, dtype=torch.int32))])
    assert caught.value.field == "launcher"
