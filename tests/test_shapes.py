"""However a launch is cut up, the values are the same: several programs a row, and several blocks a program."""

from __future__ import annotations

from typing import Any

import pytest

from cases import CASES, round_of
from qsa_group.compile import Shape
from support import Backend, refresh_once

# Blocks of two entries, so that even these small tables take several, and programs with nothing to do.
SHAPES = (
    Shape(splits=1, shares=1, block=2, num_warps=1),
    Shape(splits=3, shares=2, block=2, num_warps=1),
    Shape(splits=2, shares=7, block=2, num_warps=1),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.splits}x{shape.shares}")
# Every third case has each mode, padding, several steps, and rows that are inert.
@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case["name"])
def test_case_cut_up(backend: Backend, case: dict[str, Any], shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend.name == "host":
        pytest.skip("the host executor is not cut up")
    monkeypatch.setattr("qsa_group.planner.choose_shape", lambda rows, num_steps, max_pages: shape)
    refresh_once(backend, round_of(case))
