"""The values are the same under every tiling: several programs a row, several blocks a program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cases import CASES, random_table, round_of
from oracle import Round
from qsa_group.kernel import Tiling, choose_tiling, tilings_of_binaries
from strategies import Inputs
from support import Backend, refresh_once

# Blocks of one or two entries: a row of these small tables has several blocks, and some programs have nothing to do.
TILINGS = (
    Tiling(lanes=2, block=2, wide=1, num_warps=1),
    Tiling(lanes=2, block=1, wide=4, num_warps=4),
    Tiling(lanes=16, block=2, wide=2, num_warps=1),
)


def name_of(tiling: Tiling | None) -> str:
    return "chosen" if tiling is None else f"{tiling.lanes}of{tiling.block}"


def use_tiling(backend: Backend, tiling: Tiling | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this tiling to every launch that is planned from here on; None leaves the choice as it is."""
    if tiling is None:
        return
    if backend.name == "host":
        pytest.skip("the host executor has no tiling")
    monkeypatch.setattr("qsa_group.planner.choose_tiling", lambda mode, num_steps, rows, max_pages: tiling)


@pytest.mark.parametrize("tiling", TILINGS, ids=name_of)
# Every third case has each mode, padding, several steps, and rows that are inert.
@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case["name"])
def test_case(backend: Backend, case: dict[str, Any], tiling: Tiling, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiling(backend, tiling, monkeypatch)
    refresh_once(backend, round_of(case))


@pytest.mark.parametrize("offsets", [[300, 1, 2], [1, 300, 2], [1, 2, 300], [2, 100, 1, 300], [300, 500, 1]], ids=str)
@pytest.mark.parametrize("tiling", [None, *TILINGS], ids=name_of)
def test_any_step_may_reach_farthest(
    backend: Backend, offsets: list[int], tiling: Tiling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step reaches farther than the others by whole pages, or past the table while they stay within it."""
    use_tiling(backend, tiling, monkeypatch)
    tokens = random_table(np.random.default_rng(8), 4, 512, 64)
    refresh_once(backend, Round(tokens, [60, 1, 190], [1, 2, 3], rows=4, offsets=offsets))


@pytest.mark.parametrize("tiling", [None, *TILINGS], ids=name_of)
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_lengths_with_a_good_lower_half(
    backend: Backend, tiling: Tiling | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lower half of a length says how much is read. It must not say what is written, of no page of a row."""
    use_tiling(backend, tiling, monkeypatch)
    lengths, slots = [(1 << 32) + 300, 300 - (1 << 32), 300, (1 << 33) + 1], [1, 2, 2, 1]
    round_ = Round(random_table(np.random.default_rng(5), 3, 512, 64), lengths, slots, rows=4, offsets=[1, 2])
    if mode == "target_verify":
        round_ = round_.but(mode=mode, offsets=[0], rows=8, draft_token_num=2)
    refresh_once(backend, round_, Inputs(lens_dtype=torch.int64))


@pytest.mark.parametrize("tiling", [None, *TILINGS], ids=name_of)
def test_a_page_that_only_part_of_the_table_has(
    backend: Backend, tiling: Tiling | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last tokens of a table may begin a page that does not exist, though the page table has a column for it."""
    use_tiling(backend, tiling, monkeypatch)
    tokens = random_table(np.random.default_rng(6), 3, 64 * 130 + 8, 64)
    refresh_once(backend, Round(tokens, [64 * 130 + 6, 5000], [1, 2], rows=3, max_pages=250, offsets=[1, 2]))


@pytest.mark.parametrize("mode", ["decode", "target_verify", "draft_extend"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 7, 15])
def test_the_rule_covers_every_page_by_few_binaries(mode: str, num_steps: int) -> None:
    """A row without a block of lanes of its own shares a program, and must have a lane for each of its pages."""
    binaries = {(tiling.block, tiling.wide, tiling.num_warps) for tiling in tilings_of_binaries(mode, num_steps)}
    assert len(binaries) <= ({1: 3, 2: 2}.get(num_steps, 1) if mode == "decode" else 1)
    for rows in (1, 2, 3, 7, 8, 9, 63, 64, 65, 129, 512, 4096):
        for pages in (0, 1, 2, 3, 127, 128, 129, 4096, 16384, 1 << 20):
            tiling = choose_tiling(mode, num_steps, rows, pages)
            assert (tiling.block, tiling.wide, tiling.num_warps) in binaries
            assert tiling.lanes.bit_count() == 1
            assert tiling.lanes >= min(tiling.block, pages)
            assert tiling.lanes >= tiling.block or mode != "draft_extend"
            # Programs that are never needed cost time, too. Turns of the loop cost most where there are many steps.
            spread = num_steps > 4 and rows <= 64
            assert rows * tiling.lanes / tiling.block <= max((4 if spread else 2) * rows, 128 if rows > 4 else 512)
            assert tiling.lanes >= min(256 if spread else 128, pages)
            assert tiling.lanes < 2 * max(pages, 1) or (tiling.lanes == tiling.block and mode == "draft_extend")
