"""Bad buffers of a step: each gives a typed error that says what is wrong and what to do, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from helpers.arena import Arena
from helpers.bad_input import (
    MATRICES,
    PAGE,
    RATIO,
    ROWS,
    VECTORS,
    WIDTH,
    assert_says,
    case_in,
    misaligned,
)
from helpers.harness import HOST, planner_of
from helpers.oracle import FIELDS
from qsa_group import (
    LayoutError,
    QsaGroupError,
    StepBuffers,
)

Spoil = Callable[[torch.Tensor], Any]


def refuse_buffer(field: str, spoil: Spoil, *words: object, error: type[QsaGroupError] = LayoutError) -> QsaGroupError:
    """Plans two good steps of which the second has one spoilt buffer."""
    case = case_in()
    arena = Arena(2, ROWS, RATIO, case.page_columns)
    good, bad = arena.step(0), arena.step(1)
    bad[field] = spoil(bad[field])
    with pytest.raises(error) as caught:
        planner_of(case, HOST).plan([StepBuffers(offset=1, **good), StepBuffers(offset=2, **bad)])
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
    refuse_buffer(
        field,
        lambda t: misaligned(ROWS, t.dtype),
        "address",
        f"multiple of {8 if field == 'pending_ring_slots' else 4}",
    )


@pytest.mark.parametrize(
    "value", [[1, 2, 3, 4], np.zeros(4, dtype=np.int32), "buffer", 5, 0.5], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("field", ["sequence_lengths", "page_table"])
def test_buffer_that_is_no_tensor(field: str, value: Any) -> None:
    case = case_in()
    arena = Arena(2, ROWS, RATIO, case.page_columns)
    bad = {**arena.step(1), field: value}
    with pytest.raises(LayoutError) as caught:
        planner_of(case, HOST).plan([StepBuffers(1, **arena.step(0)), StepBuffers(2, **bad)])
    assert caught.value.field == field
    assert_says(caught.value, field, type(value).__name__)
    arena.assert_untouched()


@pytest.mark.parametrize("field", ["sequence_lengths", "page_table"])
def test_buffer_that_is_sparse(field: str) -> None:
    refuse_buffer(field, lambda t: torch.zeros(t.shape, dtype=t.dtype).to_sparse(), "sparse")


def test_step_without_buffers() -> None:
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan([StepBuffers(1, **arena.step(0)), StepBuffers(2)])
    assert (caught.value.step, caught.value.field) == (1, "buffers")
    assert_says(caught.value, "step 1", 0, "at least 1")


@pytest.mark.parametrize("offset", [-1, -(2**31), 2**31, 2**63, -(2**70)])
def test_offset_out_of_range(offset: int) -> None:
    arena = Arena(2, ROWS, RATIO, WIDTH // PAGE)
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan([StepBuffers(1, **arena.step(0)), StepBuffers(offset, **arena.step(1))])
    assert (caught.value.step, caught.value.field) == (1, "offset")
    assert_says(caught.value, "step 1", "offset", offset, "from 0 to")
    arena.assert_untouched()


@pytest.mark.parametrize("offset", ["1", 1.5, None, [1]], ids=repr)
def test_offset_that_is_no_integer(offset: Any) -> None:
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan([StepBuffers(offset, **arena.step(0))])
    assert (caught.value.step, caught.value.field) == (0, "offset")
    assert_says(caught.value, "step 0", "offset", type(offset).__name__, "int")


def test_two_buffers_of_a_step_in_the_same_memory() -> None:
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    buffers = arena.step(0)
    buffers["write_locs"] = buffers["prefix_lengths"]
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan([StepBuffers(1, **buffers)])
    assert (caught.value.step, caught.value.field) == (0, "write_locs")
    assert_says(caught.value, "step 0", "write_locs", "prefix_lengths", hex(buffers["prefix_lengths"].data_ptr()))
    arena.assert_untouched()


def test_two_buffers_of_a_step_that_share_one_byte() -> None:
    memory = torch.zeros(2 * ROWS - 1, dtype=torch.int32)
    with pytest.raises(LayoutError) as caught:
        planner_of(case_in(), HOST).plan(
            [StepBuffers(1, sequence_lengths=memory[:ROWS], logical_positions=memory[ROWS - 1 :])]
        )
    assert (caught.value.step, caught.value.field) == (0, "logical_positions")


def test_buffer_inside_the_request_table() -> None:
    case = case_in()
    table = torch.from_numpy(case.table.copy())
    arena = Arena(1, ROWS, RATIO, case.page_columns)
    buffers = {**arena.step(0), "sequence_lengths": table[2, :ROWS]}
    with pytest.raises(LayoutError) as caught:
        planner_of(case, HOST, table).plan([StepBuffers(1, **buffers)])
    assert (caught.value.step, caught.value.field) == (0, "sequence_lengths")
    assert_says(caught.value, "step 0", "sequence_lengths", "req_to_token", hex(table.data_ptr()))
    assert np.array_equal(table.numpy(), case.table)
