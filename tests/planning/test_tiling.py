"""Values are the same for every tiling: several programs a row, several blocks a program. And what the rule chooses."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cases import CASES, case_of, random_table
from helpers.harness import Backend, refresh_once, tiled
from helpers.oracle import MODES, Case
from helpers.strategies import Inputs
from qsa_group.kernel import Tiling, choose_tiling, joined_tiling, tilings_of_binaries

# Blocks of two entries: even these small tables take several, and some programs have nothing to do.
TILINGS = (
    Tiling(lanes=2, block=2, wide=1, num_warps=1),
    Tiling(lanes=2, block=1, wide=4, num_warps=4),
    Tiling(lanes=16, block=2, wide=2, num_warps=1),
)
any_tiling = pytest.mark.parametrize("tiling", [None, *TILINGS], ids=str)


def refresh_tiled(backend: Backend, case: Case, tiling: Tiling | None, how: Inputs | None = None) -> None:
    """Plans, refreshes and checks one round; None stands for the tiling of the rule."""
    refresh_once(backend, case, how, planner=None if tiling is None else tiled(case, backend, tiling))


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
# Every third handed case has each mode, padding, several steps, and rows that are inert.
@pytest.mark.parametrize("handed", CASES[::3], ids=lambda handed: handed["name"])
def test_handed_case_of_any_tiling(backend: Backend, handed: dict[str, Any], tiling: Tiling) -> None:
    refresh_tiled(backend, case_of(handed), tiling)


@pytest.mark.parametrize("offsets", [[300, 1, 2], [1, 300, 2], [1, 2, 300], [2, 100, 1, 300], [300, 500, 1]], ids=str)
@any_tiling
def test_any_step_may_reach_farthest(backend: Backend, offsets: list[int], tiling: Tiling | None) -> None:
    """By pages, or past the table while the other steps are within the table."""
    tokens = random_table(np.random.default_rng(8), 4, 512, 64)
    refresh_tiled(backend, Case(tokens, [60, 1, 190], [1, 2, 3], rows=4, offsets=offsets), tiling)


@any_tiling
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_lengths_with_a_good_lower_half(backend: Backend, tiling: Tiling | None, mode: str) -> None:
    """The lower half says how much is read. It must not say what is written: not of the first pages, nor of others."""
    lengths, slots = [(1 << 32) + 300, 300 - (1 << 32), 300, (1 << 33) + 1], [1, 2, 2, 1]
    case = Case(random_table(np.random.default_rng(5), 3, 512, 64), lengths, slots, rows=4, offsets=[1, 2])
    if mode == "target_verify":
        case = case.but(mode=mode, offsets=[0], rows=8, draft_token_num=2)
    refresh_tiled(backend, case, tiling, Inputs(lens_dtype=torch.int64))


@any_tiling
def test_a_page_that_only_part_of_the_table_has(backend: Backend, tiling: Tiling | None) -> None:
    """The last tokens of a table may begin a page that does not exist. The page table has columns beyond that page."""
    tokens = random_table(np.random.default_rng(6), 3, 64 * 130 + 8, 64)
    case = Case(tokens, [64 * 130 + 6, 5000], [1, 2], rows=3, max_pages=250, offsets=[1, 2])
    refresh_tiled(backend, case, tiling)


@pytest.mark.parametrize("mode", ["decode", "target_verify", "draft_extend"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 7, 15])
def test_the_rule_covers_every_page_by_few_binaries(mode: str, num_steps: int) -> None:
    """Rows that share a program must be covered by its lanes; other rows have programs of their own."""
    binaries = {(tiling.block, tiling.wide, tiling.num_warps) for tiling in tilings_of_binaries(mode, num_steps)}
    assert len(binaries) <= ({1: 3, 2: 2}.get(num_steps, 1) if mode == "decode" else 1)
    for rows in (1, 2, 3, 7, 8, 9, 63, 64, 65, 129, 512, 4096):
        for pages in (0, 1, 2, 3, 127, 128, 129, 4096, 16384, 1 << 20):
            tiling = choose_tiling(mode, num_steps, rows, pages)
            assert (tiling.block, tiling.wide, tiling.num_warps) in binaries
            assert tiling.lanes.bit_count() == 1
            assert tiling.lanes >= min(tiling.block, pages)
            assert tiling.lanes >= tiling.block or mode != "draft_extend"
            # Programs that are never needed cost time as well, turns of the loop most where there are many steps.
            spread = num_steps > 4 and rows <= 64
            assert rows * tiling.lanes / tiling.block <= max((4 if spread else 2) * rows, 128 if rows > 4 else 512)
            assert tiling.lanes >= min(256 if spread else 128, pages)
            assert tiling.lanes < 2 * max(pages, 1) or (tiling.lanes == tiling.block and mode == "draft_extend")


def test_groups_of_one_launch_have_the_same_warps() -> None:
    """And their lanes cover every page, whatever the mode."""
    assert len({joined_tiling(mode, 7, 8, 64).num_warps for mode in MODES}) == 1
    for mode, rows, pages in product(MODES, (1, 2, 8, 9, 64, 4096), (0, 1, 127, 4096, 1 << 20)):
        tiling, usual = joined_tiling(mode, 7, rows, pages), choose_tiling(mode, 7, rows, pages)
        assert tiling.lanes.bit_count() == 1
        assert tiling.lanes >= min(tiling.block, pages)
        assert tiling.lanes >= tiling.block or mode != "draft_extend"
        assert tiling == usual or mode == "draft_extend"
