"""A launch that fails, without a GPU: the direct way over a stand-in for the driver."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import live_inputs, step_buffers, stubbed
from helpers.oracle import Case
from qsa_group import LaunchError

ROUND = Case(random_table(np.random.default_rng(4), 6, 256, 64), [60, 100], [1, 2], rows=3, offsets=[1, 2])


def test_failing_launch_raises_and_is_no_fallback() -> None:
    """pytorch/pytorch pull 112154.

    The driver refuses: an error with its name, nothing written by anyone else instead.
    """
    arena = Arena(2, 3, 4, ROUND.page_columns)
    planner = stubbed(ROUND, fails=True)
    plan = planner.plan(step_buffers(arena, ROUND.offsets))
    for _ in range(2):
        with pytest.raises(LaunchError) as caught:
            plan.run(**live_inputs(ROUND, "cpu"))
        assert caught.value.name.startswith("CUDA_ERROR_")
        assert caught.value.name in str(caught.value)
    arena.assert_untouched()
    assert planner.stats()["launches"] == 0
    assert plan.backend == "direct"
    assert plan.explain().data["fallbacks"] == []


def test_stand_in_driver_counts_launches() -> None:
    """The same without the failure: one launch a group."""
    arena = Arena(2, 3, 4, ROUND.page_columns)
    planner = stubbed(ROUND)
    plan = planner.plan(step_buffers(arena, ROUND.offsets))
    plan.run(**live_inputs(ROUND, "cpu"))
    stats = planner.stats()
    assert (stats["launches"], stats["step_refreshes"]) == (1, 2)
