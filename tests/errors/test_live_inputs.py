"""Bad live inputs of a run: typed errors before anything is written or counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers.arena import Arena
from helpers.bad_input import (
    RATIO,
    ROWS,
    assert_names_argument,
    assert_says,
    case_in,
    misaligned,
    refuse_run,
)
from helpers.harness import HOST, Backend, Harness, live_inputs, planner_of
from qsa_group import (
    CapacityError,
    LayoutError,
    PlanChangedError,
    StepBuffers,
)


def vectors_of(mode: str) -> list[str]:
    """The names of the live vectors of a mode."""
    return ["seq_lens", "req_pool_indices"] + (["extend_lens"] if mode == "draft_extend" else [])


NAMES = [(mode, name) for mode in ("decode", "target_verify", "draft_extend") for name in vectors_of(mode)]


@pytest.mark.parametrize("value", [[5, 9, 13, 17], np.arange(4), 5, "lens", (1, 2)], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_that_is_no_tensor(backend: Backend, mode: str, name: str, value: Any) -> None:
    error = refuse_run(Harness(backend, case_in(mode)), LayoutError, (name, type(value).__name__), **{name: value})
    assert (error.step, error.field) == (None, name)


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices"])
def test_live_input_that_is_none(backend: Backend, name: str) -> None:
    error = refuse_run(Harness(backend, case_in()), LayoutError, (name, "None"), **{name: None})
    assert error.field == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_of_a_wrong_dtype(backend: Backend, mode: str, name: str, dtype: torch.dtype) -> None:
    harness = Harness(backend, case_in(mode))
    batch = len(harness.case.seq_lens)
    value = torch.ones(batch, dtype=dtype, device=backend.device)
    words = (name, str(dtype).removeprefix("torch."), "int32", "int64")
    error = refuse_run(harness, LayoutError, words, **{name: value})
    assert error.field == name


@pytest.mark.parametrize("shape", [(), (2, 2), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_of_a_wrong_rank(backend: Backend, mode: str, name: str, shape: tuple[int, ...]) -> None:
    value = torch.ones(shape, dtype=torch.int64, device=backend.device)
    error = refuse_run(
        Harness(backend, case_in(mode)), LayoutError, (name, str(list(shape)), "[batch]"), **{name: value}
    )
    assert error.field == name


@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_on_another_device(backend: Backend, mode: str, name: str) -> None:
    harness = Harness(backend, case_in(mode))
    value = torch.ones(len(harness.case.seq_lens), dtype=torch.int64, device="meta")
    error = refuse_run(harness, PlanChangedError, (name, "meta", backend.device), **{name: value})
    assert error.field == name
    assert str(error.given).startswith("meta")
    assert str(error.planned).startswith(backend.device)


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(("mode", "name"), [pair for pair in NAMES if pair[1] != "seq_lens"])
def test_live_input_whose_length_is_not_the_batch(backend: Backend, mode: str, name: str, count: int) -> None:
    harness = Harness(backend, case_in(mode))
    batch = len(harness.case.seq_lens)
    value = torch.ones(count, dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, LayoutError, (name, count, batch, "seq_lens"), **{name: value})
    assert error.field == name


def test_batch_larger_than_the_bucket(backend: Backend) -> None:
    harness = Harness(backend, case_in())
    more = torch.ones(ROWS + 1, dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, CapacityError, ("batch", ROWS + 1, ROWS), seq_lens=more, req_pool_indices=more)
    assert (error.name, error.needed, error.limit) == ("batch", ROWS + 1, ROWS)


def test_verify_batch_with_more_rows_than_the_bucket(backend: Backend) -> None:
    harness = Harness(backend, case_in("target_verify"))
    more = torch.ones(3, dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, CapacityError, ("batch", "draft_token_num", 6, 4), seq_lens=more, req_pool_indices=more)
    assert (error.name, error.needed, error.limit) == ("batch * draft_token_num", 6, 4)


def test_batch_larger_than_the_smallest_step() -> None:
    """Steps of several bucket sizes in one plan: the smallest one counts."""
    case = case_in()
    wide, narrow = Arena(1, ROWS, RATIO, 4), Arena(1, ROWS - 1, RATIO, 4)
    plan = planner_of(case, HOST).plan([StepBuffers(1, **wide.step(0)), StepBuffers(2, **narrow.step(0))])
    with pytest.raises(CapacityError) as caught:
        plan.run(**live_inputs(case, "cpu"))
    assert (caught.value.needed, caught.value.limit) == (ROWS, ROWS - 1)
    wide.assert_untouched()
    narrow.assert_untouched()


def test_extend_lens_missing(backend: Backend) -> None:
    error = refuse_run(
        Harness(backend, case_in("draft_extend")), PlanChangedError, ("extend_lens", "None"), extend_lens=None
    )
    assert error.field == "extend_lens"


@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_extend_lens_where_they_do_not_belong(backend: Backend, mode: str) -> None:
    harness = Harness(backend, case_in(mode))
    value = torch.ones(len(harness.case.seq_lens), dtype=torch.int64, device=backend.device)
    error = refuse_run(harness, PlanChangedError, ("extend_lens", mode), extend_lens=value)
    assert error.field == "extend_lens"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("mode", "name"), NAMES)
def test_live_input_off_its_element_size(mode: str, name: str, dtype: torch.dtype) -> None:
    harness = Harness(HOST, case_in(mode))
    value = misaligned(len(harness.case.seq_lens), dtype)
    error = refuse_run(harness, LayoutError, (name, "address", hex(value.data_ptr())), **{name: value})
    assert error.field == name


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices"])
def test_live_input_that_is_sparse(backend: Backend, name: str) -> None:
    value = torch.ones(ROWS, dtype=torch.int64, device=backend.device).to_sparse()
    error = refuse_run(Harness(backend, case_in()), LayoutError, (name, "sparse"), **{name: value})
    assert error.field == name


@pytest.mark.parametrize("value", ["2", 1.5, [1]], ids=repr)
def test_num_padding_that_is_no_integer(backend: Backend, value: Any) -> None:
    harness = Harness(backend, case_in())
    with pytest.raises((LayoutError, TypeError)) as caught:
        harness.plan.run(**{**live_inputs(harness.case, backend.device), "num_padding": value})
    assert_names_argument(caught.value, "num_padding")
    harness.arena.assert_untouched()


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 1, 4, 5, 2**31, 2**63 - 1])
def test_num_padding_is_clamped_to_the_batch(backend: Backend, value: int) -> None:
    Harness(backend, case_in().but(num_padding=value)).refresh()


@pytest.mark.parametrize("arguments", [{}, {"seq_lens": 1}, {"bogus": 1}], ids=repr)
def test_run_with_arguments_missing_or_unknown(arguments: dict[str, Any]) -> None:
    harness = Harness(HOST, case_in())
    given = {} if not arguments else {**live_inputs(harness.case, "cpu"), **arguments}
    if "seq_lens" in arguments:
        del given["seq_lens"]
    with pytest.raises(TypeError):
        harness.plan.run(**given)
    harness.arena.assert_untouched()


def test_a_refused_call_leaves_the_plan_usable(backend: Backend) -> None:
    for mode in ("decode", "target_verify", "draft_extend"):
        harness = Harness(backend, case_in(mode))
        with pytest.raises(LayoutError):
            harness.plan.run(**{**live_inputs(harness.case, backend.device), "seq_lens": [1]})
        harness.refresh()


@pytest.mark.parametrize("given", [1.5, None, "1", [1]], ids=repr)
def test_padding_that_is_no_int(backend: Backend, given: Any) -> None:
    harness = Harness(backend, case_in())
    with pytest.raises(LayoutError) as caught:
        harness.plan.run(**{**live_inputs(harness.case, backend.device), "num_padding": given})
    assert caught.value.field == "num_padding"
    assert_says(caught.value, "num_padding", type(given).__name__, "int")
    harness.arena.assert_untouched()
