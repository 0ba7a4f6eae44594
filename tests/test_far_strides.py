"""Strides up to the last that a kernel's argument of 32 bits holds, and the first past it.

Memory is as large as the strides say. On the host it takes no place where it is not touched; on a GPU it does, is given
back after each test, and one vector and one mode must do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

import oracle
from bad_input import assert_says
from cases import random_table
from guard_pages import sparse_memory
from oracle import Round
from qsa_group import LayoutError, RequestTable, StepBuffers
from support import Backend, Harness, live_inputs, planner_of, refresh_once

LAST = 2**30 - 1
"""int32 from a row to the next, as many as 32 bits hold in bytes."""


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def once_on_a_gpu(backend: Backend, case: str, chosen: str) -> None:
    """Skips all cases but one where the memory takes place."""
    if backend.device != "cpu" and case != chosen:
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


def small(mode: str = "decode", rows: int = 7) -> Round:
    """Three requests of a small table."""
    return Round(
        random_table(np.random.default_rng(3), 4, 256, 64),
        [250, 130, 63],
        [1, 2, 3],
        rows=rows,
        mode=mode,
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[1, 3, 2] if mode == "draft_extend" else None,
    )


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices", "extend_lens"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_live_inputs(backend: Backend, name: str, dtype: torch.dtype) -> None:
    once_on_a_gpu(backend, name, "seq_lens")
    mode = "draft_extend" if name == "extend_lens" else "decode"
    width = dtype.itemsize // 4
    for stride, served in [((LAST - width + 1) // width, True), (-(-(LAST + 1) // width), False)]:
        harness = Harness(backend, small(mode))
        arguments = live_inputs(harness.round, backend.device)
        far = far_apart(backend, ((2 * stride + 1) * width,), (1,)).view(dtype)[::stride]
        far.copy_(arguments[name])
        harness.arena.poison()
        if served:
            harness.plan.run(**{**arguments, name: far})
            harness.check()
        else:
            with pytest.raises(LayoutError) as caught:
                harness.plan.run(**{**arguments, name: far})
            assert caught.value.field == name
            assert_says(caught.value, name, "stride", f"{2**32} bytes", f"{2**32 - 1} bytes", "contiguous")
            harness.arena.assert_untouched()


def test_a_single_live_element_has_no_stride(backend: Backend) -> None:
    harness = Harness(backend, small().but(seq_lens=[250], slots=[1]))
    arguments = live_inputs(harness.round, backend.device)
    for name in ("seq_lens", "req_pool_indices"):
        arguments[name] = arguments[name].as_strided((1,), (2**40,))
    harness.arena.poison()
    harness.plan.run(**arguments)
    harness.check()


@pytest.mark.parametrize("mode", oracle.MODES)
def test_slots_of_the_table(backend: Backend, mode: str) -> None:
    once_on_a_gpu(backend, mode, "decode")
    round_ = small(mode)
    tokens = far_apart(backend, (4, 256), (LAST, 1))
    tokens.copy_(torch.from_numpy(round_.table))
    refresh_once(backend, round_, table=tokens)


@pytest.mark.parametrize("mode", oracle.MODES)
def test_tokens_of_the_table(backend: Backend, mode: str) -> None:
    """Transposed, in pages of one token: three tokens reach past 2**31 entries."""
    once_on_a_gpu(backend, mode, "decode")
    table = random_table(np.random.default_rng(3), 4, 3, 1)
    round_ = small(mode, rows=4).but(table=table, seq_lens=[2, 1, 2], ratio=1, page=1)
    if mode == "target_verify":
        round_ = round_.but(draft_token_num=1)
    elif mode == "draft_extend":
        round_ = round_.but(extend_lens=[1, 1, 2])
    tokens = far_apart(backend, (4, 3), (1, LAST))
    tokens.copy_(torch.from_numpy(table))
    refresh_once(backend, round_, table=tokens)


@pytest.mark.parametrize(("shape", "stride"), [((2, 8), (LAST + 1, 1)), ((2, 2), (1, LAST + 1))])
def test_tables_past_them(shape: tuple[int, int], stride: tuple[int, int]) -> None:
    which = "row stride" if stride[1] == 1 else "column stride"
    with pytest.raises(LayoutError) as caught:
        RequestTable(sparse_memory(shape, stride), compress_ratio=1, page_size=1)
    assert caught.value.field == "req_to_token"
    assert_says(caught.value, "req_to_token", which, f"{2**32} bytes", f"{2**32 - 1} bytes")


def test_a_table_of_one_slot_has_no_row_stride(backend: Backend) -> None:
    round_ = Round(random_table(np.random.default_rng(3), 1, 256, 64), [250], [0], rows=1)
    refresh_once(
        backend, round_, table=torch.from_numpy(round_.table).to(backend.device).as_strided((1, 256), (2**40, 1))
    )


@pytest.mark.parametrize("field", ["page_table", "ring_group_locs"])
def test_rows_of_an_output(backend: Backend, field: str) -> None:
    """The fourth row starts past 2**31 entries."""
    round_ = small(rows=4)
    out = far_apart(backend, (4, 4), (LAST, 1))
    out.fill_(-7)
    planner_of(round_, backend).plan([StepBuffers(1, **{field: out})]).run(**live_inputs(round_, backend.device))
    expected = oracle.refresh(round_).steps[0]
    if field == "ring_group_locs":
        assert out.tolist() == expected.values[field]
        return
    for row, live in enumerate(expected.live):
        assert out[row, : len(live)].tolist() == live


@pytest.mark.parametrize("field", ["page_table", "ring_group_locs"])
def test_outputs_past_them(backend: Backend, field: str) -> None:
    round_ = small(rows=2).but(seq_lens=[250], slots=[1])
    out = far_apart(backend, (2, 4), (LAST + 1, 1))
    with pytest.raises(LayoutError) as caught:
        planner_of(round_, backend).plan([StepBuffers(1, **{field: out})])
    assert (caught.value.step, caught.value.field) == (0, field)
    assert_says(caught.value, field, "row stride", f"{2**32} bytes", f"{2**32 - 1} bytes")
