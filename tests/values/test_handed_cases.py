"""The handed cases on every backend, between poison and sentinels, for every mix of input dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers import oracle
from helpers.cases import CASES, case_of
from helpers.harness import Backend, Harness, refresh_once
from helpers.strategies import Inputs

DTYPES = {"i32": torch.int32, "i64": torch.int64}


@pytest.mark.parametrize("slot_dtype", DTYPES.values(), ids=[f"slots-{name}" for name in DTYPES])
@pytest.mark.parametrize("lens_dtype", DTYPES.values(), ids=[f"lens-{name}" for name in DTYPES])
@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_case(backend: Backend, handed: dict[str, Any], lens_dtype: torch.dtype, slot_dtype: torch.dtype) -> None:
    how = Inputs(lens_dtype, slot_dtype, extend_dtype=lens_dtype)
    refresh_once(backend, case_of(handed), how)


@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_case_with_padding_told_by_slot(backend: Backend, handed: dict[str, Any]) -> None:
    """Zeroed slots say the same as a count, whatever the lengths of the padding hold."""
    counted = case_of(handed)
    real = len(counted.slots) - counted.num_padding
    slots = [slot if q < real else 0 for q, slot in enumerate(counted.slots)]
    refresh_once(backend, counted.but(padding="slot", num_padding=0, slots=slots))


@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_case_in_buffers_with_gaps_off_their_alignment(backend: Backend, handed: dict[str, Any]) -> None:
    how = Inputs(lens_form="shifted", slot_form="strided", extend_form="shifted")
    refresh_once(backend, case_of(handed), how, page_gap=3, ring_gap=1, shift=1)


@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_second_refresh_replaces_the_first(backend: Backend, handed: dict[str, Any]) -> None:
    """What an earlier batch left behind shows nowhere but in page table tails."""
    case = case_of(handed)
    short = case.but(
        seq_lens=[1] * len(case.seq_lens),
        extend_lens=None if case.extend_lens is None else [1] * len(case.extend_lens),
        num_padding=0,
    )
    harness = Harness(backend, case)
    harness.refresh(short)
    harness.run(case)
    wanted = harness.arena.fresh()
    wanted.write(oracle.refresh(short))
    wanted.write(oracle.refresh(case))
    difference = harness.arena.difference(wanted)
    assert difference is None, difference
