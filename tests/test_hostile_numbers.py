"""Numbers that no engine should hand over: inert rows and status bits. The same on a GPU is in gpu/test_hostile.py."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from hostile import hostile_round, status_bits
from oracle import MODES
from strategies import Inputs
from support import HOST, Backend, Harness, refresh_once

DTYPES = list(product((torch.int64, torch.int32), repeat=2))


@pytest.mark.parametrize("form", ["contiguous", "shifted", "strided"])
@pytest.mark.parametrize(("lens_dtype", "slot_dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_in_every_form(
    mode: str, lens_dtype: torch.dtype, slot_dtype: torch.dtype, form: str
) -> None:
    how = Inputs(lens_dtype, slot_dtype, lens_dtype, form, form, form)
    harness = refresh_once(HOST, hostile_round(mode, how), how, page_gap=1, shift=1)
    assert int(harness.plan.status()) == status_bits(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_with_every_other(backend: Backend, mode: str) -> None:
    how = Inputs(slot_dtype=torch.int64, extend_dtype=torch.int64)
    round_ = hostile_round(mode, how, full=backend != Backend("triton", "cpu"))
    harness = refresh_once(backend, round_, how)
    assert int(harness.plan.status()) == status_bits(mode)


@pytest.mark.parametrize("mode", MODES)
def test_hostile_numbers_in_padding_raise_nothing(backend: Backend, mode: str) -> None:
    round_ = hostile_round(mode, Inputs(), full=False)
    harness = Harness(backend, round_)
    harness.refresh(round_.but(num_padding=len(round_.seq_lens)))
    assert int(harness.plan.status()) == 0
