"""Numbers that no engine should hand over, on the device: inert rows and status bits, nothing read or written outside.

Small enough for compute-sanitizer: QSA_GROUP_SANITIZER=1 leaves out what only repeats it, and
PYTORCH_NO_CUDA_MEMORY_CACHING=1 gives each tensor an allocation of its own.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import pytest
import torch

from helpers import oracle
from helpers.arena import Arena
from helpers.harness import Backend, Harness, live_inputs, mode_arguments, planner_of, refresh_once
from helpers.hostile import PAGE, RATIO, WIDTH, hostile_case, status_bits
from helpers.oracle import MODES
from helpers.strategies import Inputs, clip
from qsa_group import StepBuffers

SHORT = os.environ.get("QSA_GROUP_SANITIZER") == "1"
DTYPES = [(torch.int64, torch.int64)] if SHORT else list(product((torch.int64, torch.int32), repeat=2))
FORMS = ["strided"] if SHORT else ["contiguous", "shifted", "strided"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("lens_dtype", "slot_dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_with_every_other(
    gpu_backend: Backend, mode: str, lens_dtype: torch.dtype, slot_dtype: torch.dtype, form: str
) -> None:
    how = Inputs(lens_dtype, slot_dtype, lens_dtype, form, form, form)
    case = hostile_case(mode, how)
    harness = refresh_once(gpu_backend, case, how, page_gap=1, shift=1)
    bits = status_bits(mode)
    assert int(harness.plan.status()) == bits
    assert int(harness.plan.status_word.cpu()) == bits


@pytest.mark.parametrize("mode", MODES)
def test_hostile_numbers_in_padding_raise_nothing(gpu_backend: Backend, mode: str) -> None:
    case = hostile_case(mode, Inputs())
    harness = Harness(gpu_backend, case)
    harness.refresh(case.but(num_padding=len(case.seq_lens)))
    assert int(harness.plan.status()) == 0


@pytest.mark.parametrize("columns", [1, WIDTH // PAGE, WIDTH // PAGE + 2])
@pytest.mark.parametrize("mode", MODES)
def test_table_and_inputs_that_end_where_their_memory_ends(gpu_backend: Backend, mode: str, columns: int) -> None:
    """A read past any of them is an error under compute-sanitizer."""
    case = hostile_case(mode, Inputs(torch.int64, torch.int32, torch.int64)).but(max_pages=columns)
    harness = Harness(gpu_backend, case)
    exact: dict[str, Any] = {
        "seq_lens": torch.tensor(case.seq_lens, dtype=torch.int64, device=gpu_backend.device),
        "req_pool_indices": torch.tensor(
            clip(list(case.slots), torch.int32), dtype=torch.int32, device=gpu_backend.device
        ),
    }
    if case.extend_lens is not None:
        exact["extend_lens"] = torch.tensor(case.extend_lens, dtype=torch.int64, device=gpu_backend.device)
    harness.plan.run(**exact)
    harness.check(case.but(slots=clip(list(case.slots), torch.int32)))


@pytest.mark.parametrize("mode", MODES)
def test_outputs_that_end_where_their_memory_ends(gpu_backend: Backend, mode: str) -> None:
    """Without sentinels: each buffer is an allocation of its own."""
    case = hostile_case(mode, Inputs())
    arena = Arena(case.steps, case.rows, RATIO, case.page_columns, gpu_backend.device)
    steps = [
        {name: torch.empty_like(view, memory_format=torch.contiguous_format) for name, view in arena.step(s).items()}
        for s in range(case.steps)
    ]
    plan = planner_of(case, gpu_backend).plan(
        [StepBuffers(offset, **buffers) for offset, buffers in zip(case.offsets, steps, strict=True)],
        **mode_arguments(case),
    )
    for buffers in steps:
        buffers["page_table"].copy_(arena.region("page_table")[0])
    plan.run(**live_inputs(case, gpu_backend.device))
    for step, buffers in enumerate(steps):
        for name, view in buffers.items():
            arena.region(name)[step].copy_(view)
    arena.assert_holds(oracle.refresh(case))


def test_hostile_numbers_in_a_joined_launch(gpu_backend: Backend) -> None:
    """The round of draft extend has hostile numbers of every kind; draft and verify get the same batch."""
    extend = hostile_case("draft_extend", Inputs())
    batch = len(extend.seq_lens)
    draft = extend.but(mode="decode", extend_lens=None, rows=batch + 3, offsets=[1, 2, 3])
    verify = extend.but(mode="target_verify", extend_lens=None, rows=3 * batch + 2, draft_token_num=3)
    planner = planner_of(extend, gpu_backend)
    members = [Harness(gpu_backend, case, planner=planner, page_gap=1, shift=1) for case in (extend, draft, verify)]
    joined = planner.join([member.plan for member in members])
    assert len(joined.launches) == 1
    joined.run(**live_inputs(extend, gpu_backend.device))
    status = 0
    for member in members:
        status |= Harness.check_arena(member.arena, member.case).status
    assert int(joined.status()) == status
    assert int(joined.status()) == status_bits("draft_extend") | status_bits("decode")
