"""Bad arguments: each gives a typed error that says what is wrong and what to do, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from arena import Arena
from cases import random_table
from oracle import FIELDS, Round
from qsa_group import (
    CapacityError,
    LayoutError,
    PlanChangedError,
    QsaGroupError,
    ReplayPlanner,
    RequestTable,
    StepBuffers,
    UnsupportedError,
)
from support import HOST, Backend, Harness, live_inputs, mode_arguments, planner_of, step_buffers

ROWS, RATIO, PAGE, WIDTH = 4, 4, 8, 32
VECTORS = [name for name in FIELDS if name not in ("ring_group_locs", "page_table")]
MATRICES = ["ring_group_locs", "page_table"]


def round_in(mode: str = "decode", rows: int = ROWS) -> Round:
    """A small good round of a mode."""
    batch = rows // 2 if mode == "target_verify" else rows
    return Round(
        table=random_table(np.random.default_rng(7), 6, WIDTH, PAGE),
        seq_lens=[5, 9, 13, 17][:batch],
        slots=[1, 2, 3, 4][:batch],
        rows=rows,
        ratio=RATIO,
        page=PAGE,
        mode=mode,
        offsets=[1, 2] if mode == "decode" else [1],
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[1, 0, 2, 1][:batch] if mode == "draft_extend" else None,
    )


def assert_says(error: BaseException, *words: object) -> None:
    """The message has each of these words, and ends in a remedy."""
    text = str(error)
    for word in words:
        assert str(word) in text, f"{word!r} is missing in {text!r}"
    _, _, remedy = text.rpartition("; ")
    assert remedy != text and len(remedy.split()) >= 2, f"no remedy in {text!r}"


def misaligned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector that starts one byte off."""
    return torch.frombuffer(bytearray(8 * count + 16), dtype=dtype, offset=1, count=count)


# --- buffers of a step ------------------------------------------------------------------------------------------------

Spoil = Callable[[torch.Tensor], Any]


def refuse_buffer(field: str, spoil: Spoil, *words: object, error: type[QsaGroupError] = LayoutError) -> QsaGroupError:
    """Plans two good steps of which the second has one spoilt buffer."""
    round_ = round_in()
    arena = Arena(2, ROWS, RATIO, round_.page_columns)
    good, bad = arena.step(0), arena.step(1)
    bad[field] = spoil(bad[field])
    with pytest.raises(error) as caught:
        planner_of(round_, HOST).plan([StepBuffers(offset=1, **good), StepBuffers(offset=2, **bad)])
    if isinstance(caught.value, LayoutError):
        assert caught.value.step == 1
        assert caught.value.field == field
    assert_says(caught.value, "step 1", field, *words)
    arena.assert_untouched()
    return caught.value


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.bool, torch.uint8, "other integer"], ids=str)
@pytest.mark.parametrize("field", FIELDS)
def test_buffer_of_a_wrong_dtype(field: str, dtype: Any) -> None:
    right, other = ("int64", "int32") if field == "pending_ring_slots" else ("int32", "int64")
    wrong: torch.dtype = getattr(torch, other) if isinstance(dtype, str) else dtype
    refuse_buffer(field, lambda t: torch.zeros(t.shape, dtype=wrong), str(wrong).removeprefix("torch."), right)


@pytest.mark.parametrize("field", FIELDS)
def test_buffer_on_another_device(field: str) -> None:
    refuse_buffer(field, lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), "meta", "cpu")


@pytest.mark.parametrize("field", FIELDS)
def test_buffer_of_a_wrong_rank(field: str) -> None:
    rank = "[rows, columns]" if field in MATRICES else "[rows]"
    refuse_buffer(field, lambda t: torch.zeros((), dtype=t.dtype), "[]", rank)
    refuse_buffer(field, lambda t: torch.zeros((ROWS, 2, 2), dtype=t.dtype), f"[{ROWS}, 2, 2]", rank)
    if field in MATRICES:
        refuse_buffer(field, lambda t: torch.zeros(ROWS, dtype=t.dtype), f"[{ROWS}]", rank)
    else:
        refuse_buffer(field, lambda t: torch.zeros((ROWS, 1), dtype=t.dtype), f"[{ROWS}, 1]", rank)


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1, 0])
@pytest.mark.parametrize("field", FIELDS[1:])
def test_buffer_with_other_rows_than_its_step(field: str, rows: int) -> None:
    refuse_buffer(field, lambda t: torch.zeros((rows, *t.shape[1:]), dtype=t.dtype), "rows", rows, ROWS)


@pytest.mark.parametrize("field", VECTORS)
def test_vector_that_is_not_contiguous(field: str) -> None:
    refuse_buffer(field, lambda t: torch.zeros(3 * ROWS, dtype=t.dtype)[::3], "stride", 3, 1)
    refuse_buffer(field, lambda t: torch.zeros(1, dtype=t.dtype).expand(ROWS), "stride", 0, 1)


@pytest.mark.parametrize("field", MATRICES)
def test_matrix_whose_rows_are_not_contiguous(field: str) -> None:
    refuse_buffer(field, lambda t: torch.zeros((t.shape[1], t.shape[0]), dtype=t.dtype).t(), "stride", ROWS, 1)


@pytest.mark.parametrize("field", MATRICES)
def test_matrix_whose_rows_share_memory(field: str) -> None:
    refuse_buffer(field, lambda t: torch.zeros(64, dtype=t.dtype).as_strided(t.shape, (1, 1)), "stride", 1, 4)
    refuse_buffer(field, lambda t: torch.zeros((1, t.shape[1]), dtype=t.dtype).expand(t.shape), "stride", 0, 4)


@pytest.mark.parametrize("columns", [0, RATIO - 1, RATIO + 1])
def test_ring_columns_that_are_not_the_ratio(columns: int) -> None:
    refuse_buffer(
        "ring_group_locs", lambda t: torch.zeros((ROWS, columns), dtype=t.dtype), columns, f"compress_ratio {RATIO}"
    )


@pytest.mark.parametrize("field", VECTORS)
def test_buffer_off_its_element_size(field: str) -> None:
    refuse_buffer(field, lambda t: misaligned(ROWS, t.dtype), "address", f"multiple of {torch.zeros(1).long().element_size() if field == 'pending_ring_slots' else 4}")


@pytest.mark.parametrize("value", [[1, 2, 3, 4], np.zeros(4, dtype=np.int32), "buffer", 5, 0.5], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("field", ["sequence_lengths", "page_table"])
def test_buffer_that_is_no_tensor(field: str, value: Any) -> None:
    round_ = round_in()
    arena = Arena(2, ROWS, RATIO, round_.page_columns)
    bad = {**arena.step(1), field: value}
    with pytest.raises(LayoutError) as caught:
        planner_of(round_, HOST).plan([StepBuffers(1, **arena.step(0)), StepBuffers(2, **bad)])
    assert caught.value.field == field
    assert_says(caught.value, field, type(value).__name__)
    arena.assert_untouched()


@pytest.mark.parametrize("field", ["sequence_lengths", "page_table"])
def test_buffer_that_is_sparse(field: str) -> None:
    refuse_buffer(field, lambda t: torch.zeros(t.shape, dtype=t.dtype).to_sparse(), "sparse")


def test_step_without_buffers() -> None:
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan([StepBuffers(1, **arena.step(0)), StepBuffers(2)])
    assert (caught.value.step, caught.value.field) == (1, "buffers")
    assert_says(caught.value, "step 1", 0, "at least 1")


@pytest.mark.parametrize("offset", [-1, -(2**31), 2**31, 2**63, -(2**70)])
def test_offset_out_of_range(offset: int) -> None:
    arena = Arena(2, ROWS, RATIO, WIDTH // PAGE)
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan([StepBuffers(1, **arena.step(0)), StepBuffers(offset, **arena.step(1))])
    assert (caught.value.step, caught.value.field) == (1, "offset")
    assert_says(caught.value, "step 1", "offset", offset, 2**31 - 1)
    arena.assert_untouched()


@pytest.mark.parametrize("offset", ["1", 1.5, None, [1]], ids=repr)
def test_offset_that_is_no_integer(offset: Any) -> None:
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan([StepBuffers(offset, **arena.step(0))])
    assert caught.value.field == "offset"
    assert_says(caught.value, "offset", repr(offset))


def test_two_buffers_of_a_step_in_the_same_memory() -> None:
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    buffers = arena.step(0)
    buffers["write_locs"] = buffers["prefix_lengths"]
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan([StepBuffers(1, **buffers)])
    assert (caught.value.step, caught.value.field) == (0, "write_locs")
    assert_says(caught.value, "step 0", "write_locs", "prefix_lengths", hex(buffers["prefix_lengths"].data_ptr()))
    arena.assert_untouched()


def test_two_buffers_of_a_step_that_share_one_byte() -> None:
    memory = torch.zeros(2 * ROWS - 1, dtype=torch.int32)
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan(
            [StepBuffers(1, sequence_lengths=memory[:ROWS], logical_positions=memory[ROWS - 1 :])]
        )
    assert (caught.value.step, caught.value.field) == (0, "logical_positions")


def test_buffer_inside_the_request_table() -> None:
    round_ = round_in()
    table = torch.from_numpy(round_.table.copy())
    arena = Arena(1, ROWS, RATIO, round_.page_columns)
    buffers = {**arena.step(0), "sequence_lengths": table[2, :ROWS]}
    with pytest.raises(LayoutError) as caught:
        planner_of(round_, HOST, table).plan([StepBuffers(1, **buffers)])
    assert (caught.value.step, caught.value.field) == (0, "sequence_lengths")
    assert_says(caught.value, "step 0", "sequence_lengths", "req_to_token", hex(table.data_ptr()))
    assert np.array_equal(table.numpy(), round_.table)


# --- the list of steps, the mode, the planner, the table --------------------------------------------------------------


@pytest.mark.parametrize("steps", [[], ()], ids=["list", "tuple"])
def test_empty_list_of_steps(steps: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan(steps)
    assert caught.value.field == "steps"
    assert_says(caught.value, "steps", 0)


@pytest.mark.parametrize("steps", [None, 3, [None], [{"offset": 1}], "steps"], ids=repr)
def test_steps_that_are_no_list_of_steps(steps: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        planner_of(round_in(), HOST).plan(steps)
    assert_says(caught.value, "StepBuffers")


def plan_with(**arguments: Any) -> None:
    """Plans one good step with these arguments."""
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    try:
        planner_of(round_in(), HOST).plan(step_buffers(arena, [1]), **arguments)
    finally:
        arena.assert_untouched()


@pytest.mark.parametrize("mode", ["verify", "", "Decode", None, 0], ids=repr)
def test_unknown_mode(mode: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        plan_with(mode=mode)
    assert caught.value.field == "mode"
    assert_says(caught.value, "mode", mode, "decode", "target_verify", "draft_extend")


@pytest.mark.parametrize("padding", ["none", "", None, 3], ids=repr)
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


@pytest.mark.parametrize("number", [None, 0, -1, 2**31, "2", 2.5], ids=repr)
def test_draft_token_num_missing_or_wrong(number: Any) -> None:
    with pytest.raises(LayoutError) as caught:
        plan_with(mode="target_verify", draft_token_num=number)
    assert caught.value.field == "draft_token_num"
    assert_says(caught.value, "draft_token_num", number)


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


def refuse_table(tensor: Any, field: str, *words: object, ratio: Any = RATIO, page: Any = PAGE) -> None:
    """Describes a table that cannot be one."""
    with pytest.raises(LayoutError) as caught:
        RequestTable(tensor, compress_ratio=ratio, page_size=page)
    assert caught.value.field == field
    assert_says(caught.value, field, *words)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.float32, torch.bool], ids=str)
def test_table_that_is_not_int32(dtype: torch.dtype) -> None:
    refuse_table(torch.zeros((4, 32), dtype=dtype), "req_to_token", str(dtype).removeprefix("torch."), "int32")


@pytest.mark.parametrize("shape", [(), (32,), (2, 2, 8), (0, 32), (4, 0)], ids=str)
def test_table_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    refuse_table(torch.zeros(shape, dtype=torch.int32), "req_to_token", str(list(shape)))


def test_table_whose_rows_share_memory() -> None:
    refuse_table(torch.zeros((1, 32), dtype=torch.int32).expand(4, 32), "req_to_token", "stride", 0, 32)
    refuse_table(torch.zeros(64, dtype=torch.int32).as_strided((4, 32), (8, 1)), "req_to_token", "stride", 8, 32)


def test_table_that_is_no_tensor() -> None:
    for value in (None, [[0] * 32] * 4, np.zeros((4, 32), dtype=np.int32)):
        refuse_table(value, "req_to_token", type(value).__name__)


def test_table_that_is_sparse_or_off_its_element_size() -> None:
    refuse_table(torch.zeros((4, 32), dtype=torch.int32).to_sparse(), "req_to_token", "sparse")
    refuse_table(misaligned(128, torch.int32).view(4, 32), "req_to_token", "address", 4)


@pytest.mark.parametrize("ratio", [0, -1, -4, "4", 2.5, None], ids=repr)
def test_compress_ratio_that_is_none(ratio: Any) -> None:
    refuse_table(torch.zeros((4, 32), dtype=torch.int32), "compress_ratio", ratio, ratio=ratio)


@pytest.mark.parametrize("page", [0, -8, 6, 2, "8", 8.5, None], ids=repr)
def test_page_size_that_is_no_multiple_of_the_ratio(page: Any) -> None:
    refuse_table(torch.zeros((4, 32), dtype=torch.int32), "page_size", page, page=page)


def test_table_on_a_device_that_cannot_be_read() -> None:
    with pytest.raises((LayoutError, UnsupportedError)) as caught:
        ReplayPlanner(
            RequestTable(torch.empty((4, 32), dtype=torch.int32, device="meta"), compress_ratio=RATIO, page_size=PAGE)
        )
    assert_says(caught.value, "meta")


# --- live inputs ------------------------------------------------------------------------------------------------------


def refuse_run(
    harness: Harness, error: type[QsaGroupError], words: tuple[object, ...], **changes: Any
) -> QsaGroupError:
    """Runs with some live inputs changed; nothing may be written and no state may change."""
    before = harness.planner.stats()
    with pytest.raises(error) as caught:
        harness.plan.run(**{**live_inputs(harness.round, harness.backend.device), **changes})
    assert_says(caught.value, *words)
    harness.arena.assert_untouched()
    assert int(harness.plan.status()) == 0
    after = harness.planner.stats()
    assert (after["runs"], after["launches"]) == (before["runs"], before["launches"])
    return caught.value


def vectors_of(mode: str) -> list[str]:
    """The names of the live vectors of a mode."""
    return ["seq_lens", "req_pool_indices"] + (["extend_lens"] if mode == "draft_extend" else [])


NAMES = [(mode, name) for mode in ("decode", "target_verify", "draft_extend") for name in vectors_of(mode)]


@pytest.mark.parametrize("value", [[5, 9, 13, 17], np.arange(4), 5, "lens", (1, 2)], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_that_is_no_tensor(backend: Backend, mode: str, name: str, value: Any) -> None:
    error = refuse_run(Harness(backend, round_in(mode)), LayoutError, (name, type(value).__name__), **{name: value})
    assert isinstance(error, LayoutError)
    assert (error.step, error.field) == (None, name)


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices"])
def test_live_input_that_is_none(backend: Backend, name: str) -> None:
    error = refuse_run(Harness(backend, round_in()), LayoutError, (name, "None"), **{name: None})
    assert isinstance(error, LayoutError) and error.field == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_of_a_wrong_dtype(backend: Backend, mode: str, name: str, dtype: torch.dtype) -> None:
    harness = Harness(backend, round_in(mode))
    batch = len(harness.round.seq_lens)
    value = torch.ones(batch, dtype=dtype, device=backend.device)
    words = (name, str(dtype).removeprefix("torch."), "int32", "int64")
    error = refuse_run(harness, LayoutError, words, **{name: value})
    assert isinstance(error, LayoutError) and error.field == name


@pytest.mark.parametrize("shape", [(), (2, 2), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_of_a_wrong_rank(backend: Backend, mode: str, name: str, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape, dtype=torch.int64, device=backend.device)
    error = refuse_run(
        Harness(backend, round_in(mode)), LayoutError, (name, str(list(shape)), "[batch]"), **{name: value}
    )
    assert isinstance(error, LayoutError) and error.field == name


@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_on_another_device(backend: Backend, mode: str, name: str) -> None:
    harness = Harness(backend, round_in(mode))
    value = torch.ones(len(harness.round.seq_lens), dtype=torch.int64, device="meta")
    error = refuse_run(harness, PlanChangedError, (name, "meta", backend.device), **{name: value})
    assert isinstance(error, PlanChangedError) and error.field == name
    assert str(error.given).startswith("meta") and str(error.planned).startswith(backend.device)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(("mode", "name"), [pair for pair in NAMES if pair[1] != "seq_lens"])
def test_live_input_whose_length_is_not_the_batch(backend: Backend, mode: str, name: str, count: int) -> None:
    harness = Harness(backend, round_in(mode))
    batch = len(harness.round.seq_lens)
    value = torch.ones(count, dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, LayoutError, (name, count, batch, "seq_lens"), **{name: value})
    assert isinstance(error, LayoutError) and error.field == name


def test_batch_larger_than_the_bucket(backend: Backend) -> None:
    harness = Harness(backend, round_in())
    more = torch.ones(ROWS + 1, dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, CapacityError, ("batch", ROWS + 1, ROWS), seq_lens=more, req_pool_indices=more)
    assert isinstance(error, CapacityError)
    assert (error.name, error.needed, error.limit) == ("batch", ROWS + 1, ROWS)


def test_verify_batch_with_more_rows_than_the_bucket(backend: Backend) -> None:
    harness = Harness(backend, round_in("target_verify"))
    more = torch.ones(3, dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, CapacityError, ("batch", "draft_token_num", 6, 4), seq_lens=more, req_pool_indices=more)
    assert isinstance(error, CapacityError)
    assert "batch" in error.name and (error.needed, error.limit) == (6, 4)


def test_batch_larger_than_the_smallest_step() -> None:
    """Steps of several bucket sizes in one plan: the smallest one counts."""
    round_ = round_in()
    wide, narrow = Arena(1, ROWS, RATIO, 4), Arena(1, ROWS - 1, RATIO, 4)
    plan = planner_of(round_, HOST).plan([StepBuffers(1, **wide.step(0)), StepBuffers(2, **narrow.step(0))])
    with pytest.raises(CapacityError) as caught:
        plan.run(**live_inputs(round_, "cpu"))
    assert (caught.value.needed, caught.value.limit) == (ROWS, ROWS - 1)
    wide.assert_untouched()
    narrow.assert_untouched()


def test_extend_lens_missing(backend: Backend) -> None:
    error = refuse_run(
        Harness(backend, round_in("draft_extend")), PlanChangedError, ("extend_lens", "None"), extend_lens=None
    )
    assert isinstance(error, PlanChangedError) and error.field == "extend_lens"


@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_extend_lens_where_they_do_not_belong(backend: Backend, mode: str) -> None:
    harness = Harness(backend, round_in(mode))
    value = torch.ones(len(harness.round.seq_lens), dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, PlanChangedError, ("extend_lens", mode), extend_lens=value)
    assert isinstance(error, PlanChangedError) and error.field == "extend_lens"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_off_its_element_size(mode: str, name: str, dtype: torch.dtype) -> None:
    harness = Harness(HOST, round_in(mode))
    value = misaligned(len(harness.round.seq_lens), dtype)
    error = refuse_run(harness, LayoutError, (name, "address", hex(value.data_ptr())), **{name: value})
    assert isinstance(error, LayoutError) and error.field == name


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices"])
def test_live_input_that_is_sparse(backend: Backend, name: str) -> None:
    value = torch.ones(ROWS, dtype=torch.int64, device=backend.device).to_sparse()
    error = refuse_run(Harness(backend, round_in()), LayoutError, (name, "sparse"), **{name: value})
    assert isinstance(error, LayoutError) and error.field == name


@pytest.mark.parametrize("value", ["2", 1.5, [1]], ids=repr)
def test_num_padding_that_is_no_integer(backend: Backend, value: Any) -> None:
    harness = Harness(backend, round_in())
    with pytest.raises((TypeError, QsaGroupError), match="num_padding"):
        harness.plan.run(**{**live_inputs(harness.round, backend.device), "num_padding": value})
    harness.arena.assert_untouched()


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 1, 4, 5, 2**31, 2**63 - 1])
def test_num_padding_is_clamped_to_the_batch(backend: Backend, value: int) -> None:
    Harness(backend, round_in().but(num_padding=value)).refresh()


@pytest.mark.parametrize("arguments", [{}, {"seq_lens": 1}, {"bogus": 1}], ids=repr)
def test_run_with_arguments_missing_or_unknown(arguments: dict[str, Any]) -> None:
    harness = Harness(HOST, round_in())
    given = {} if not arguments else {**live_inputs(harness.round, "cpu"), **arguments}
    if "seq_lens" in arguments:
        del given["seq_lens"]
    with pytest.raises(TypeError):
        harness.plan.run(**given)
    harness.arena.assert_untouched()


def test_a_refused_call_leaves_the_plan_usable(backend: Backend) -> None:
    for mode in ("decode", "target_verify", "draft_extend"):
        harness = Harness(backend, round_in(mode))
        with pytest.raises(LayoutError):
            harness.plan.run(**{**live_inputs(harness.round, backend.device), "seq_lens": [1]})
        harness.refresh()


def test_a_refused_plan_leaves_the_planner_usable() -> None:
    round_ = round_in()
    planner = planner_of(round_, HOST)
    with pytest.raises(LayoutError):
        planner.plan([StepBuffers(-1, **Arena(1, ROWS, RATIO, 4).step(0))])
    assert planner.stats()["cached"] == 0
    Harness(HOST, round_, planner=planner).refresh()


def test_every_error_is_of_this_package_and_of_a_builtin_kind() -> None:
    for kind in (LayoutError, CapacityError, PlanChangedError):
        assert issubclass(kind, QsaGroupError) and issubclass(kind, ValueError)
    assert issubclass(UnsupportedError, QsaGroupError) and issubclass(UnsupportedError, NotImplementedError)
    with pytest.raises(ValueError, match="mode"):
        plan_with(**mode_arguments(round_in().but(mode="other")))
