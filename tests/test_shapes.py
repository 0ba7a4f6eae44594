"""However a launch is cut up, the values are the same: several programs a row, and several blocks a program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cases import CASES, random_table, round_of
from oracle import Round
from qsa_group.shapes import Shape, choose_shape, shapes_of_binaries
from strategies import Inputs
from support import Backend, refresh_once

# Blocks of two entries, so that even these small tables take several, and programs with nothing to do.
SHAPES = (
    Shape(lanes=2, block=2, wide=1, num_warps=1),
    Shape(lanes=2, block=1, wide=4, num_warps=4),
    Shape(lanes=16, block=2, wide=2, num_warps=1),
)


def cut_up(backend: Backend, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every launch that is planned from here on have this shape."""
    if backend.name == "host":
        pytest.skip("the host executor is not cut up")
    monkeypatch.setattr("qsa_group.planner.choose_shape", lambda mode, num_steps, rows, max_pages: shape)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.lanes}of{shape.block}")
# Every third case has each mode, padding, several steps, and rows that are inert.
@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case["name"])
def test_case_cut_up(backend: Backend, case: dict[str, Any], shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_up(backend, shape, monkeypatch)
    refresh_once(backend, round_of(case))


@pytest.mark.parametrize("offsets", [[300, 1, 2], [1, 300, 2], [1, 2, 300], [2, 100, 1, 300], [300, 500, 1]], ids=str)
@pytest.mark.parametrize("shape", [None, *SHAPES], ids=lambda shape: shape and f"{shape.lanes}of{shape.block}")
def test_any_step_may_reach_farthest(
    backend: Backend, offsets: list[int], shape: Shape | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pages, or past the table while the others are within it."""
    if shape is not None:
        cut_up(backend, shape, monkeypatch)
    tokens = random_table(np.random.default_rng(8), 4, 512, 64)
    refresh_once(backend, Round(tokens, [60, 1, 190], [1, 2, 3], rows=4, offsets=offsets))


@pytest.mark.parametrize("shape", [None, *SHAPES], ids=lambda shape: shape and f"{shape.lanes}of{shape.block}")
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_lengths_with_a_good_lower_half(
    backend: Backend, shape: Shape | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That half says how much is read, and must not say what is written: not of the first pages, nor of the others."""
    if shape is not None:
        cut_up(backend, shape, monkeypatch)
    lengths, slots = [(1 << 32) + 300, 300 - (1 << 32), 300, (1 << 33) + 1], [1, 2, 2, 1]
    round_ = Round(random_table(np.random.default_rng(5), 3, 512, 64), lengths, slots, rows=4, offsets=[1, 2])
    if mode == "target_verify":
        round_ = round_.but(mode=mode, offsets=[0], rows=8, draft_token_num=2)
    refresh_once(backend, round_, Inputs(lens_dtype=torch.int64))


@pytest.mark.parametrize("shape", [None, *SHAPES], ids=lambda shape: shape and f"{shape.lanes}of{shape.block}")
def test_a_page_that_only_part_of_the_table_has(
    backend: Backend, shape: Shape | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last tokens of a table may begin a page that does not exist; the page table has columns beyond it."""
    if shape is not None:
        cut_up(backend, shape, monkeypatch)
    tokens = random_table(np.random.default_rng(6), 3, 64 * 130 + 8, 64)
    refresh_once(backend, Round(tokens, [64 * 130 + 6, 5000], [1, 2], rows=3, max_pages=250, offsets=[1, 2]))


@pytest.mark.parametrize("mode", ["decode", "target_verify", "draft_extend"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 7, 15])
def test_the_rule_covers_every_page_by_few_binaries(mode: str, num_steps: int) -> None:
    """Rows that share a program must be covered by its lanes; other rows have programs of their own."""
    binaries = {(shape.block, shape.wide, shape.num_warps) for shape in shapes_of_binaries(mode, num_steps)}
    assert len(binaries) <= ({1: 3, 2: 2}.get(num_steps, 1) if mode == "decode" else 1)
    for rows in (1, 2, 3, 7, 8, 9, 63, 64, 65, 129, 512, 4096):
        for pages in (0, 1, 2, 3, 127, 128, 129, 4096, 16384, 1 << 20):
            shape = choose_shape(mode, num_steps, rows, pages)
            assert (shape.block, shape.wide, shape.num_warps) in binaries
            assert shape.lanes.bit_count() == 1
            assert shape.lanes >= min(shape.block, pages)
            assert shape.lanes >= shape.block or mode != "draft_extend"
            # Programs that are never needed cost time as well, turns of the loop most where there are many steps.
            spread = num_steps > 4 and rows <= 64
            assert rows * shape.lanes / shape.block <= max((4 if spread else 2) * rows, 128 if rows > 4 else 512)
            assert shape.lanes >= min(256 if spread else 128, pages)
            assert shape.lanes < 2 * max(pages, 1) or (shape.lanes == shape.block and mode == "draft_extend")
