"""What `tune.py` measures, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHES))
    from tuning import kernels

    return kernels


def test_each_block_and_number_of_steps_is_a_kernel_of_its_own(kernels: Any) -> None:
    blocks = [(64, 1024, 2), (128, 1024, 4)]
    variants = kernels.variants("decode", [1, 3], blocks)
    assert len({variant.groups[0] for variant in variants}) == 4
    assert {group.num_steps for variant in variants for group in variant.groups} == {1, 3}
    assert len(kernels.variants("target_verify", [1, 3], blocks)) == 2


@pytest.mark.parametrize("mode", ["decode", "draft_extend"])
def test_a_kernel_says_what_a_plan_compiles(kernels: Any, mode: str) -> None:
    """A field that is missing or in the wrong place would measure another kernel."""
    (variant,) = kernels.variants(mode, [1], [(64, 1024, 2)])
    (group,) = variant.groups
    assert (group.mode, group.compress_ratio, group.page_size, group.ring_size) == (mode, 4, 64, 4)
    assert (group.tiling.block, group.tiling.wide, group.tiling.num_warps) == (64, 1024, 2)
