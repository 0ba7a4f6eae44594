"""Faults of addressing, strides and overlap that were reported against neighbouring software.

Each docstring begins with the public thread that reported the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.arena import POISON, Arena
from helpers.cases import random_table, table_of
from helpers.guard_pages import fenced, sparse_memory
from helpers.harness import Backend, Harness, live_inputs, planner_of, refresh_once, step_buffers
from helpers.oracle import Case
from helpers.strategies import Inputs
from qsa_group import StepBuffers


def table(slots: int, width: int, page: int = 64) -> np.ndarray:
    """A random table that is the same in every run."""
    return random_table(np.random.default_rng(11), slots, width, page)


@pytest.mark.parametrize("base", [133, 134, 135, 136, 139, 10**6])
def test_length_past_the_table_in_its_last_slot(backend: Backend, base: int) -> None:
    """sgl-project/sglang issue 29695. Nothing lies behind the last slot; on the host, the first byte there faults."""
    tokens = table(4, 136)
    case = Case(tokens, [base, 7], [3, 1], rows=2, offsets=[1, 2, 3], max_pages=4)
    memory = torch.from_numpy(tokens)
    for at_end in (True, False):
        placed = fenced(memory, at_end=at_end) if backend.device == "cpu" else memory.to(backend.device)
        harness = refresh_once(backend, case, table=placed)
        assert bool(int(harness.plan.status()) & oracle.LENGTH_EXCEEDS_TABLE) == (base + 3 > 136)


@pytest.mark.parametrize("length", [135, 136, 137, 140, 143, 144, 200, 2**31 - 1, 2**62])
def test_extend_that_reaches_past_the_table(backend: Backend, length: int) -> None:
    """sgl-project/sglang issue 29695, in draft extend: the first rows of a request may still be served."""
    case = Case(table(4, 136), [length, 7], [3, 1], rows=14, mode="draft_extend", extend_lens=[8, 2], max_pages=2)
    harness = refresh_once(backend, case, Inputs(lens_dtype=torch.int64))
    served = [n for n in range(length - 7, length + 1) if n <= 136]
    assert harness.arena.region("sequence_lengths")[0].tolist() == [*served, *[1] * (8 - len(served)), 6, 7, *[1] * 4]


def test_live_inputs_at_the_edge_of_memory(backend: Backend) -> None:
    """sgl-project/sglang issue 29695, for the live inputs: nothing is read before the first or past the last."""
    if backend.device != "cpu":
        pytest.skip("only host memory can be fenced")
    case = Case(table(5, 128), [60, 61, 62], [1, 2, 3], rows=8, mode="draft_extend", extend_lens=[2, 3, 1])
    for at_end in (True, False):
        harness = Harness(backend, case)
        for dtype in (torch.int32, torch.int64):
            arguments: dict[str, Any] = {
                "seq_lens": fenced(torch.tensor(case.seq_lens, dtype=dtype), at_end=at_end),
                "req_pool_indices": fenced(torch.tensor(case.slots, dtype=dtype), at_end=at_end),
                "extend_lens": fenced(torch.tensor(case.extend_lens, dtype=dtype), at_end=at_end),
            }
            harness.arena.poison()
            harness.plan.run(**arguments)
            harness.check()


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("width", [4 * 129, 4 * 129 + 2])
def test_the_table_at_the_edge_of_memory(backend: Backend, width: int, at_end: bool) -> None:
    """sgl-project/sglang issue 29695, for the table: no slot and no length leads a read before or past it."""
    if backend.device != "cpu":
        pytest.skip("only host memory can be fenced")
    # Whole pages, or half of one more, and fewer than a page table has columns, which are no power of two.
    tokens = table(8, width, page=4)
    slots = [7, 8, 9, -1, 7, (1 << 32) + 8, (1 << 32) + 7, 0, 1]
    for lengths in ([516] * 9, [(1 << 31) - 1] * 9, [(1 << 32) + 7] * 9, [width, 1, 9, width, 0, *[width] * 3, 3]):
        case = Case(tokens, lengths, slots, rows=9, page=4, max_pages=200, offsets=[0, 1, 2])
        placed = fenced(torch.from_numpy(tokens), at_end=at_end)
        for padding in ("count", "slot"):
            refresh_once(backend, case.but(padding=padding), Inputs(slot_dtype=torch.int64), table=placed)


def test_slot_times_stride_past_31_bits(backend: Backend) -> None:
    """vllm-project/vllm pull 16806. Slot 600 of a table whose rows are 3,600,000 entries apart."""
    slots, width, stride = 601, 256, 3_600_000
    if backend.device == "cpu":
        tokens = sparse_memory((slots, width), (stride, 1))
    else:
        if torch.cuda.mem_get_info()[0] < 12 << 30:
            pytest.skip("the table needs 9 GB of device memory")
        flat = torch.empty((slots - 1) * stride + width, dtype=torch.int32, device=backend.device)
        tokens = flat.as_strided((slots, width), (stride, 1))
    small = table_of({1: [5, 6, 7, 8], 599: [9, 4, 3, 2], 600: [1, 10, 11, 12]}, slots, width, 64)
    for slot in (0, 1, 599, 600):
        tokens[slot] = torch.from_numpy(small[slot]).to(backend.device)
    case = Case(small, [255, 130, 63], [600, 1, 599], rows=4)
    for mode in oracle.MODES:
        refresh_once(
            backend,
            case.but(
                mode=mode,
                rows=9,
                draft_token_num=3 if mode == "target_verify" else None,
                extend_lens=[1, 2, 3] if mode == "draft_extend" else None,
                seq_lens=[250, 130, 63],
            ),
            table=tokens,
        )


def _sliced(tokens: torch.Tensor) -> torch.Tensor:
    slots, width = tokens.shape
    wide = torch.full((slots, width + 40), -77, dtype=tokens.dtype, device=tokens.device)
    wide[:, 13 : 13 + width] = tokens
    return wide[:, 13 : 13 + width]


def _transposed(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.t().contiguous().t()


def _spread(tokens: torch.Tensor) -> torch.Tensor:
    slots, width = tokens.shape
    wide = torch.full((slots * 2, width * 3), -77, dtype=tokens.dtype, device=tokens.device)
    wide[::2, 1::3] = tokens
    return wide[::2, 1::3]


def _shifted(tokens: torch.Tensor) -> torch.Tensor:
    flat = torch.full((tokens.numel() + 1,), -77, dtype=tokens.dtype, device=tokens.device)
    flat[1:] = tokens.flatten()
    return flat[1:].view(tokens.shape)


@pytest.mark.parametrize("mode", oracle.MODES)
@pytest.mark.parametrize("form", [_sliced, _transposed, _spread, _shifted], ids=lambda f: f.__name__.strip("_"))
def test_strides_of_the_table_are_honoured(
    backend: Backend, form: Callable[[torch.Tensor], torch.Tensor], mode: str
) -> None:
    """sgl-project/sglang pull 27498: the table."""
    tokens = table(6, 192)
    case = Case(
        tokens,
        [62, 190, 7, 500],
        [5, 2, 3, 1],
        rows=12,
        mode=mode,
        draft_token_num=3 if mode == "target_verify" else None,
        extend_lens=[3, 1, 2, 1] if mode == "draft_extend" else None,
    )
    refresh_once(backend, case, table=form(torch.from_numpy(tokens).to(backend.device)))


@pytest.mark.parametrize("form", ["shifted", "strided"])
@pytest.mark.parametrize("mode", oracle.MODES)
def test_strides_of_the_live_inputs_are_honoured(backend: Backend, mode: str, form: str) -> None:
    """sgl-project/sglang pull 27498: the live inputs."""
    case = Case(
        table(6, 192),
        [62, 150, 7],
        [5, 2, 3],
        rows=9,
        mode=mode,
        draft_token_num=3 if mode == "target_verify" else None,
        extend_lens=[3, 1, 2] if mode == "draft_extend" else None,
    )
    for dtype in (torch.int32, torch.int64):
        refresh_once(backend, case, Inputs(dtype, dtype, dtype, form, form, form))


def test_live_input_expanded_from_one_element(backend: Backend) -> None:
    """sgl-project/sglang pull 27498: a stride of 0 is a stride."""
    case = Case(table(6, 192), [62] * 5, [3] * 5, rows=6)
    harness = Harness(backend, case)
    lens = torch.full((1,), 62, dtype=torch.int64, device=backend.device).expand(5)
    slots = torch.full((1,), 3, dtype=torch.int32, device=backend.device).expand(5)
    harness.plan.run(lens, slots)
    harness.check()


@pytest.mark.parametrize("field", ["sequence_lengths", "row_req_pool_indices", "prefix_lengths", "logical_positions"])
def test_output_of_a_step_is_the_input_of_the_call(backend: Backend, field: str) -> None:
    """triton-lang/triton issue 1615, 10743.

    The first step writes where the lengths are read: each step sees them as they are at its turn.
    """
    tokens = table(6, 192)
    case = Case(tokens, [62, 150, 7], [5, 2, 3], rows=3, offsets=[1, 2, 3])
    harness = Harness(backend, case)
    lens = harness.arena.region(field)[0].copy_(torch.tensor(case.seq_lens))
    slots = torch.tensor(case.slots, dtype=torch.int32, device=backend.device)
    harness.plan.run(lens, slots)
    wanted = harness.arena.fresh()
    now = list(case.seq_lens)
    for step, offset in enumerate(case.offsets):
        (expected,) = oracle.refresh(case.but(seq_lens=now, offsets=[offset])).steps
        alone = wanted.fresh()
        alone.write(oracle.Outcome([expected] * (step + 1)))
        for name in wanted.fields:
            wanted.region(name)[step] = alone.region(name)[step]
        if step == 0:
            now = [int(n) for n in wanted.region(field)[0]]
    difference = harness.arena.difference(wanted)
    assert difference is None, difference
    assert harness.planner.stats()["overlap_runs"] == 1
    explanation = harness.plan.explain()
    assert explanation.data["overlap_runs"] == 1
    (fallback,) = explanation.data["fallbacks"]
    assert "shared memory" in fallback
    assert fallback in explanation


def test_input_that_shares_part_of_an_output_off_by_one_row(backend: Backend) -> None:
    """triton-lang/triton issue 1615, 10743. Writing row i must not change what row i + 1 reads."""
    tokens = table(6, 192)
    lens = [60, 50, 40]
    harness = Harness(backend, Case(tokens, lens, [5, 2, 3], rows=3))
    block = harness.arena.blocks["sequence_lengths"][0]
    start = harness.arena.region("sequence_lengths")[0].storage_offset()
    for offset in (-1, 1):
        harness.arena.poison()
        shifted = block[start + offset : start + offset + 3].copy_(torch.tensor(lens))
        harness.plan.run(shifted, torch.tensor([5, 2, 3], dtype=torch.int32, device=backend.device))
        assert harness.arena.region("sequence_lengths")[0].tolist() == [61, 51, 41]
        assert harness.arena.region("row_req_pool_indices")[0].tolist() == [5, 2, 3]


def test_two_steps_with_one_output_run_in_order(backend: Backend) -> None:
    """triton-lang/triton issue 1615, 10743. Two steps share a buffer: not in one launch, and the later one wins."""
    case = Case(table(6, 192), [62, 150, 7], [5, 2, 3], rows=3, offsets=[1, 2])
    arena = Arena(2, 3, 4, case.page_columns, backend.device)
    first, second = arena.step(0), arena.step(1)
    second["sequence_lengths"] = first["sequence_lengths"]
    planner = planner_of(case, backend)
    for order in ([(1, first), (2, second)], [(2, second), (1, first)]):
        plan = planner.plan([StepBuffers(offset, **buffers) for offset, buffers in order])
        assert plan.groups == ((0,), (1,))
        (split,) = plan.explain().data["splits"]
        assert (split["step"], split["group_of"], split["field"]) == (1, 0, "overlap")
        assert (split["value"], split["other"]) == ("sequence_lengths of step 1", "sequence_lengths of step 0")
        arena.poison()
        plan.run(**live_inputs(case, backend.device))
        wanted = arena.fresh()
        wanted.write(oracle.refresh(case))
        wanted.region("sequence_lengths")[0] = torch.tensor([n + order[-1][0] for n in case.seq_lens])
        wanted.region("sequence_lengths")[1].fill_(POISON)
        difference = arena.difference(wanted)
        assert difference is None, difference


def test_steps_without_a_common_byte_share_a_launch_in_one_allocation(backend: Backend) -> None:
    """triton-lang/triton issue 1615, 10743: the other side: neighbours in memory are no overlap."""
    case = Case(table(6, 192), [62, 150, 7], [5, 2, 3], rows=3, offsets=[1, 2, 3, 4])
    harness = Harness(backend, case)
    assert harness.plan.groups == ((0, 1, 2, 3),)
    packed = torch.zeros((4, 3), dtype=torch.int32, device=backend.device)
    plan = harness.planner.plan([StepBuffers(s + 1, sequence_lengths=packed[s]) for s in range(4)])
    assert plan.groups == ((0, 1, 2, 3),)
    plan.run(**live_inputs(case, backend.device))
    assert packed.tolist() == [[n + s + 1 for n in case.seq_lens] for s in range(4)]


def test_other_shape_at_the_address_of_a_former_plan(backend: Backend) -> None:
    """flashinfer-ai/flashinfer pull 4601. A page table was freed, and one of another width lies where it was."""
    case = Case(table(6, 65 * 4, 4), [62, 150, 7, 100], [5, 2, 3, 1], rows=4, page=4)
    planner = planner_of(case, backend)
    memory = torch.zeros(4 * 65, dtype=torch.int32, device=backend.device)
    wide = planner.plan([StepBuffers(1, page_table=memory.view(4, 65))])
    narrow = planner.plan([StepBuffers(1, page_table=memory[: 4 * 33].view(4, 33))])
    assert narrow is not wide
    assert (planner.stats()["hits"], planner.stats()["misses"]) == (0, 2)
    for plan, columns in ((wide, 65), (narrow, 33), (wide, 65)):
        memory.fill_(-3)
        plan.run(**live_inputs(case, backend.device))
        (expected,) = oracle.refresh(case.but(max_pages=columns)).steps
        pages = memory[: 4 * columns].view(4, columns)
        for row, live in enumerate(expected.live):
            assert pages[row, : len(live)].tolist() == live
            assert pages[row, len(live) :].eq(-3).all()


def test_every_step_of_a_plan_is_in_its_own_buffers(backend: Backend) -> None:
    """sgl-project/sglang pull 35275. Two runners with three and five steps, in turns."""
    tokens = table(6, 192)
    planner = planner_of(Case(tokens, [1], [1], rows=1), backend)
    short = Harness(backend, Case(tokens, [62, 150], [5, 2], rows=2, offsets=[1, 2, 3]), planner=planner)
    long = Harness(backend, Case(tokens, [10, 60], [1, 3], rows=2, offsets=[1, 2, 3, 4, 5]), planner=planner)
    for turn in range(3):
        for active, resting in ((short, long), (long, short)):
            resting.arena.poison()
            active.refresh(active.case.but(seq_lens=[n + turn for n in active.case.seq_lens]))
            resting.arena.assert_untouched()


def test_step_buffers_of_an_arena_do_not_touch_each_other() -> None:
    """The arena itself: what the tests above rely on."""
    arena = Arena(3, 4, 4, 5, page_gap=2, ring_gap=1, shift=3)
    for step, buffers in enumerate(step_buffers(arena, [1, 2, 3])):
        assert buffers.page_table is not None
        buffers.page_table.fill_(step)
    assert [arena.region("page_table")[step].unique().tolist() for step in range(3)] == [[0], [1], [2]]
