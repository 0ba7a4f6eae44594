"""Numbers that no engine should hand over, on the device: inert rows and status bits, nothing read or written outside.

Small enough for compute-sanitizer: QSA_GROUP_SANITIZER=1 leaves out what only repeats it, and
PYTORCH_NO_CUDA_MEMORY_CACHING=1 gives each tensor an allocation of its own.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import oracle
from arena import Arena
from cases import random_table
from oracle import MODES, Round
from qsa_group import StepBuffers
from strategies import HOSTILE_EXTENDS, HOSTILE_LENGTHS, HOSTILE_SLOTS, INT32_MAX, Inputs, clip
from support import Backend, Harness, live_inputs, mode_arguments, planner_of, refresh_once

SHORT = os.environ.get("QSA_GROUP_SANITIZER") == "1"
SLOTS, WIDTH, PAGE, RATIO = 6, 136, 16, 4
DTYPES = [(torch.int64, torch.int64)] if SHORT else list(product((torch.int64, torch.int32), repeat=2))
FORMS = ["strided"] if SHORT else ["contiguous", "shifted", "strided"]


def table() -> np.ndarray:
    """A table with entries that were never allocated."""
    rng = np.random.default_rng(13)
    tokens = random_table(rng, SLOTS, WIDTH, PAGE)
    tokens[rng.random(tokens.shape) < 0.2] = -1
    tokens[rng.random(tokens.shape) < 0.05] = INT32_MAX
    return tokens


def hostile_round(mode: str, how: Inputs) -> Round:
    """Every hostile length with every hostile slot, among good ones."""
    lengths = [*HOSTILE_LENGTHS, WIDTH - 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH + 3, 1, 5, 64]
    slots = [*HOSTILE_SLOTS, SLOTS, SLOTS - 1, 0, 2]
    if mode == "draft_extend":
        extends = [*HOSTILE_EXTENDS, 0, 1, 2, 5]
        triples = [(n, r, e) for n, r, e in product(lengths, slots[-4:], extends) if e < 1000]
        triples += [(5, 2, 10), (7, 1, 1000), (9, 1, 2**62), (3, 3, -1)]
    else:
        triples = [(n, r, 0) for n, r in product(lengths, slots)]
    window = 3
    batch = len(triples)
    rows = {"decode": batch + 3, "target_verify": batch * window + 3}.get(
        mode, sum(max(e, 0) for n, r, e in triples if e < 1000) + 20
    )
    return Round(
        table(),
        clip([n for n, _, _ in triples], how.lens_dtype),
        clip([r for _, r, _ in triples], how.slot_dtype),
        rows=rows,
        ratio=RATIO,
        page=PAGE,
        mode=mode,
        offsets=[1, 2, 3] if mode == "decode" else [1],
        draft_token_num=window if mode == "target_verify" else None,
        extend_lens=clip([e for _, _, e in triples], how.extend_dtype) if mode == "draft_extend" else None,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("lens_dtype", "slot_dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_with_every_other(
    gpu_backend: Backend, mode: str, lens_dtype: torch.dtype, slot_dtype: torch.dtype, form: str
) -> None:
    how = Inputs(lens_dtype, slot_dtype, lens_dtype, form, form, form)
    round_ = hostile_round(mode, how)
    harness = refresh_once(gpu_backend, round_, how, page_gap=1, shift=1)
    bits = {
        "decode": oracle.SLOT_OUT_OF_TABLE | oracle.LENGTH_NOT_POSITIVE | oracle.LENGTH_EXCEEDS_TABLE,
        "target_verify": oracle.SLOT_OUT_OF_TABLE | oracle.LENGTH_NOT_POSITIVE | oracle.LENGTH_EXCEEDS_TABLE,
        "draft_extend": 31,
    }[mode]
    assert int(harness.plan.status()) == bits
    assert int(harness.plan.status_word.cpu()) == bits


@pytest.mark.parametrize("mode", MODES)
def test_hostile_numbers_in_padding_raise_nothing(gpu_backend: Backend, mode: str) -> None:
    round_ = hostile_round(mode, Inputs())
    harness = Harness(gpu_backend, round_)
    harness.refresh(round_.but(num_padding=len(round_.seq_lens)))
    assert int(harness.plan.status()) == 0


@pytest.mark.parametrize("columns", [1, WIDTH // PAGE, WIDTH // PAGE + 2])
@pytest.mark.parametrize("mode", MODES)
def test_table_and_inputs_that_end_where_their_memory_ends(gpu_backend: Backend, mode: str, columns: int) -> None:
    """A read past any of them is an error under compute-sanitizer."""
    round_ = hostile_round(mode, Inputs(torch.int64, torch.int32, torch.int64)).but(max_pages=columns)
    harness = Harness(gpu_backend, round_)
    exact: dict[str, Any] = {
        "seq_lens": torch.tensor(round_.seq_lens, dtype=torch.int64, device=gpu_backend.device),
        "req_pool_indices": torch.tensor(
            clip(list(round_.slots), torch.int32), dtype=torch.int32, device=gpu_backend.device
        ),
    }
    if round_.extend_lens is not None:
        exact["extend_lens"] = torch.tensor(round_.extend_lens, dtype=torch.int64, device=gpu_backend.device)
    harness.plan.run(**exact)
    harness.check(round_.but(slots=clip(list(round_.slots), torch.int32)))


@pytest.mark.parametrize("mode", MODES)
def test_outputs_that_end_where_their_memory_ends(gpu_backend: Backend, mode: str) -> None:
    """Without sentinels: each buffer is an allocation of its own."""
    round_ = hostile_round(mode, Inputs())
    arena = Arena(round_.steps, round_.rows, RATIO, round_.page_columns, gpu_backend.device)
    steps = [
        {name: torch.empty_like(view, memory_format=torch.contiguous_format) for name, view in arena.step(s).items()}
        for s in range(round_.steps)
    ]
    plan = planner_of(round_, gpu_backend).plan(
        [StepBuffers(offset, **buffers) for offset, buffers in zip(round_.offsets, steps, strict=True)],
        **mode_arguments(round_),
    )
    for buffers in steps:
        buffers["page_table"].copy_(arena.region("page_table")[0])
    plan.run(**live_inputs(round_, gpu_backend.device))
    for step, buffers in enumerate(steps):
        for name, view in buffers.items():
            arena.region(name)[step].copy_(view)
    arena.assert_holds(oracle.refresh(round_))
