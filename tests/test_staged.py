"""The host backend for tensors of another device, without such a device: copies in, copies out, the same contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qsa_group.planner
from cases import random_table
from hostile import hostile_round, status_bits
from oracle import MODES, Round
from qsa_group import ReplayPlan
from qsa_group.plans import StagedPlan
from strategies import Inputs
from support import HOST, Harness, planner_of

ROUND = Round(random_table(np.random.default_rng(4), 9, 256, 64), [60, 100, 250], [1, 2, 3], rows=4, offsets=[1, 2])


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Harness]:
    """Makes a harness whose plan is staged; the plans that this one makes for itself are not."""

    def harness(round_: Round, **form: Any) -> Harness:
        planner = planner_of(round_, HOST)

        def make(blueprint: Any, *rest: Any) -> ReplayPlan:
            if blueprint.table is not planner.table:
                return ReplayPlan(blueprint, *rest)
            blueprint.kernels = []
            return StagedPlan(blueprint, *rest)

        monkeypatch.setattr(qsa_group.planner, "ReplayPlan", make)
        made = Harness(HOST, round_, planner=planner, **form)
        assert isinstance(made.plan, StagedPlan)
        return made

    return harness


def test_status_is_of_the_runs_since_the_reset(staged: Callable[..., Harness]) -> None:
    harness = staged(ROUND)
    harness.refresh()
    harness.refresh(ROUND.but(seq_lens=[60, 100, 9999]))
    harness.refresh()


def test_page_table_tails_are_left_alone(staged: Callable[..., Harness]) -> None:
    harness = staged(ROUND, page_gap=2)
    harness.refresh()
    harness.refresh(ROUND.but(seq_lens=[1, 2, 3]))


@pytest.mark.parametrize("mode", MODES)
def test_hostile_numbers(staged: Callable[..., Harness], mode: str) -> None:
    harness = staged(hostile_round(mode, Inputs()))
    harness.refresh()
    assert int(harness.plan.status()) == status_bits(mode)
