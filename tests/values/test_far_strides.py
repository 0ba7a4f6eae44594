"""Strides up to the last that a kernel's argument of 32 bits holds, and the first past it.

Memory is as large as the strides say. On the host it takes no place where it is not touched; on a GPU it does, is given
back after each test, and one vector and one mode must do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.bad_input import assert_says, refuse_run, refuse_table
from helpers.cases import random_table
from helpers.guard_pages import sparse_memory
from helpers.harness import HOST, Backend, Harness, live_inputs, mode_arguments, planner_of, refresh_once
from helpers.oracle import Case
from qsa_group import LayoutError, RequestTable, StepBuffers

LAST = 2**30 - 1
"""int32 from a row to the next, as many as 32 bits hold in bytes."""


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def once_on_a_gpu(backend: Backend, handed: str, chosen: str) -> None:
    """Skips all cases but one where the memory takes place."""
    if backend.device != "cpu" and handed != chosen:
        pytest.skip(f"on a GPU, {chosen} stands for all")


def far_apart(backend: Backend, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor of int32 in memory of its own."""
    if backend.device == "cpu":
        return sparse_memory(shape, stride)
    count = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
    if torch.cuda.mem_get_info()[0] < 4 * count + (2 << 30):
        pytest.skip(f"wants {4 * count / 1e9:.0f} GB of device memory")
    flat = torch.empty(count, dtype=torch.int32, device=backend.device)
    return flat.as_strided(list(shape), list(stride))


def small(mode: str = "decode", rows: int = 7) -> Case:
    """Three requests of a small table."""
    return Case(
        random_table(np.random.default_rng(3), 4, 256, 64),
        [250, 130, 63],
        [1, 2, 3],
        rows=rows,
        mode=mode,
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[1, 3, 2] if mode == "draft_extend" else None,
    )


def assert_pages(out: torch.Tensor, rows: Sequence[list[int]]) -> None:
    """Rows have these pages, and behind them what was there before."""
    for found, live in zip(out, rows, strict=True):
        assert found.tolist() == live + [-7] * (len(found) - len(live))


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices", "extend_lens"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_live_inputs(backend: Backend, name: str, dtype: torch.dtype) -> None:
    once_on_a_gpu(backend, name, "req_pool_indices")
    harness = Harness(backend, small("draft_extend" if name == "extend_lens" else "decode"))
    arguments = live_inputs(harness.case, backend.device)
    ints = dtype.itemsize // 4
    last = LAST // ints
    far = far_apart(backend, ((2 * last + 1) * ints,), (1,)).view(dtype)[::last]
    far.copy_(arguments[name])
    harness.arena.poison()
    harness.plan.run(**{**arguments, name: far})
    harness.check()


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices", "extend_lens"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_live_inputs_past_them(backend: Backend, name: str, dtype: torch.dtype) -> None:
    once_on_a_gpu(backend, name, "seq_lens")
    harness = Harness(backend, small("draft_extend" if name == "extend_lens" else "decode"))
    ints = dtype.itemsize // 4
    first = (LAST + 1) // ints
    far = far_apart(backend, ((2 * first + 1) * ints,), (1,)).view(dtype)[::first]
    words = (name, "stride", f"{2**32} bytes", f"{2**32 - 1} bytes", "contiguous copy")
    assert refuse_run(harness, LayoutError, words, **{name: far}).field == name
    other = Harness(backend, harness.case, planner=harness.planner)
    joined = harness.planner.join([harness.plan, other.plan])
    with pytest.raises(LayoutError) as caught:
        joined.run(**{**live_inputs(harness.case, backend.device), name: far})
    assert_says(caught.value, *words)
    harness.arena.assert_untouched()
    other.arena.assert_untouched()


@pytest.mark.parametrize("stride", [2**29 - 1, 2**29, LAST])
@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices", "extend_lens"])
def test_far_beside_near(backend: Backend, name: str, stride: int) -> None:
    """Two numbers share an argument: a large one leaves a small one as it is, in either half."""
    once_on_a_gpu(backend, name, "req_pool_indices")
    case = small("draft_extend" if name == "extend_lens" else "decode").but(slots=[2, 2, 2])
    harness = Harness(backend, case.but(extend_lens=[1, -1, 1]) if name == "extend_lens" else case)
    arguments = live_inputs(harness.case, backend.device)
    far = far_apart(backend, (3,), (stride,))
    far.copy_(arguments[name])
    arguments["req_pool_indices"] = torch.tensor([2], dtype=torch.int32, device=backend.device).expand(3)
    harness.arena.poison()
    harness.plan.run(**{**arguments, name: far})
    harness.check()


@pytest.mark.parametrize("mode", ["decode", "draft_extend"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_single_live_element_has_no_stride(backend: Backend, mode: str, dtype: torch.dtype) -> None:
    case = small(mode).but(seq_lens=[250], slots=[1])
    harness = Harness(backend, case.but(extend_lens=[3]) if mode == "draft_extend" else case)
    arguments = live_inputs(harness.case, backend.device)
    for name, given in arguments.items():
        if isinstance(given, torch.Tensor):
            # What lies behind the element is no upper half of it.
            arguments[name] = given.new_full((3,), -1).to(dtype).as_strided((1,), (2**40,)).copy_(given)
    harness.arena.poison()
    harness.plan.run(**arguments)
    harness.check()


@pytest.mark.parametrize("mode", oracle.MODES)
def test_slots_of_the_table(backend: Backend, mode: str) -> None:
    once_on_a_gpu(backend, mode, "decode")
    case = small(mode)
    tokens = far_apart(backend, (4, 256), (LAST, 1))
    tokens.copy_(torch.from_numpy(case.table))
    refresh_once(backend, case, table=tokens)


@pytest.mark.parametrize("mode", oracle.MODES)
def test_tokens_of_the_table(backend: Backend, mode: str) -> None:
    """Transposed, in pages of one token: three tokens reach past 2**31 entries."""
    once_on_a_gpu(backend, mode, "decode")
    table = random_table(np.random.default_rng(3), 4, 3, 1)
    case = small(mode, rows=4).but(table=table, seq_lens=[2, 1, 2], ratio=1, page=1)
    if mode == "target_verify":
        case = case.but(draft_token_num=1)
    elif mode == "draft_extend":
        case = case.but(extend_lens=[1, 1, 2])
    tokens = far_apart(backend, (4, 3), (1, LAST))
    tokens.copy_(torch.from_numpy(table))
    refresh_once(backend, case, table=tokens)


@pytest.mark.parametrize("mode", oracle.MODES)
def test_pages_past_a_rows_lanes(backend: Backend, mode: str) -> None:
    """So many rows that pages from the 129th on are written in a loop, out of a far slot and into a far row."""
    if backend.device != "cpu":
        pytest.skip("the rows would take 300 GB")
    table = random_table(np.random.default_rng(3), 4, 400, 1)
    case = small(mode, rows=70).but(table=table, seq_lens=[380, 1, 200], slots=[3, 1, 2], ratio=1, page=1)
    tokens = far_apart(backend, (4, 400), (LAST, 1))
    tokens.copy_(torch.from_numpy(table))
    out = far_apart(backend, (70, 400), (LAST, 1))
    out[:8].fill_(-7)
    plan = planner_of(case, backend, table=tokens).plan([StepBuffers(1, page_table=out)], **mode_arguments(case))
    plan.run(**live_inputs(case, backend.device))
    assert_pages(out[:8], oracle.refresh(case).steps[0].live[:8])


@pytest.mark.parametrize(("shape", "stride"), [((2, 8), (LAST + 1, 1)), ((2, 2), (1, LAST + 1))])
def test_tables_past_them(shape: tuple[int, int], stride: tuple[int, int]) -> None:
    which = "row stride" if stride[1] == 1 else "column stride"
    words = (which, f"{2**32} bytes", f"{2**32 - 1} bytes")
    refuse_table(sparse_memory(shape, stride), "req_to_token", *words, ratio=1, page=1)


@pytest.mark.parametrize("shape", [(2, LAST), (LAST, 2)])
def test_the_largest_tables(shape: tuple[int, int]) -> None:
    """Contiguous and transposed, they are as large as strides allow; one more is refused for its size."""
    slots, width = shape
    stride = (width, 1) if width > slots else (1, slots)
    RequestTable(sparse_memory(shape, stride), compress_ratio=1, page_size=1)
    larger = tuple(n + (n == LAST) for n in shape)
    memory = sparse_memory(larger, tuple(s + (s == LAST) for s in stride))
    refuse_table(memory, "req_to_token", "shape", LAST + 1, LAST, ratio=1, page=1)


def test_a_single_slot_or_token_has_no_stride(backend: Backend) -> None:
    case = Case(random_table(np.random.default_rng(3), 1, 256, 64), [250], [0], rows=1)
    tokens = torch.from_numpy(case.table).to(backend.device)
    refresh_once(backend, case, table=tokens.as_strided((1, 256), (2**40, 1)))
    case = Case(random_table(np.random.default_rng(3), 4, 1, 1), [0, 0], [3, 1], rows=2, ratio=1, page=1)
    tokens = torch.from_numpy(case.table).to(backend.device)
    refresh_once(backend, case, table=tokens.as_strided((4, 1), (1, 2**40)))


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("field", ["page_table", "ring_group_locs"])
def test_rows_of_an_output(backend: Backend, field: str, mode: str) -> None:
    """The fourth row starts past 2**31 entries."""
    once_on_a_gpu(backend, mode, "decode")
    case = small(mode, rows=6)
    out = far_apart(backend, (6, 4), (LAST, 1))
    out.fill_(-7)
    plan = planner_of(case, backend).plan([StepBuffers(1, **{field: out})], **mode_arguments(case))
    plan.run(**live_inputs(case, backend.device))
    expected = oracle.refresh(case).steps[0]
    if field == "ring_group_locs":
        assert out.tolist() == expected.values[field]
    else:
        assert_pages(out, expected.live)


@pytest.mark.parametrize("field", ["page_table", "ring_group_locs"])
def test_outputs_past_them(backend: Backend, field: str) -> None:
    case = small(rows=2).but(seq_lens=[250], slots=[1])
    out = far_apart(backend, (2, 4), (LAST + 1, 1))
    with pytest.raises(LayoutError) as caught:
        planner_of(case, backend).plan([StepBuffers(1, **{field: out})])
    assert (caught.value.step, caught.value.field) == (0, field)
    assert_says(caught.value, field, "row stride", f"{2**32} bytes", f"{2**32 - 1} bytes")


def test_outputs_too_wide_for_any_stride() -> None:
    case = small(rows=2).but(seq_lens=[250], slots=[1])
    out = sparse_memory((2, LAST + 1), (LAST + 1, 1))
    with pytest.raises(LayoutError) as caught:
        planner_of(case, HOST).plan([StepBuffers(1, page_table=out)])
    assert_says(caught.value, "step 0", "page_table", "columns", LAST + 1, LAST)
    # A single row needs none.
    planner_of(case, HOST).plan([StepBuffers(1, page_table=out[:1])]).run(**live_inputs(case, "cpu"))
    assert out[0, :5].tolist() == [*oracle.refresh(case).steps[0].live[0], 0]


def test_a_single_row_of_an_output_has_no_stride(backend: Backend) -> None:
    """Rows that lie anywhere are as good as contiguous ones, and share their launch."""
    case = small(rows=1).but(seq_lens=[250], slots=[1], offsets=[1, 2])
    near, far = (torch.full((1, 4), -7, dtype=torch.int32, device=backend.device) for _ in range(2))
    planner = planner_of(case, backend)
    plan = planner.plan(
        [StepBuffers(1, page_table=near), StepBuffers(2, page_table=far.as_strided((1, 4), (2**40, 1)))]
    )
    assert plan.groups == ((0, 1),)
    plan.run(**live_inputs(case, backend.device))
    for out, expected in zip((near, far), oracle.refresh(case).steps, strict=True):
        assert_pages(out, expected.live)
