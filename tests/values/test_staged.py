"""The host backend for tensors of another device, without such a device: copies in, copies out, the same contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers.arena import Arena
from helpers.cases import CASES, case_of, random_table
from helpers.harness import HOST, Harness, live_inputs, planner_of, step_buffers
from helpers.hostile import hostile_case, status_bits
from helpers.oracle import MODES, Case
from helpers.strategies import Inputs
from qsa_group import LaunchError, launch
from qsa_group.launch import staged

ROUND = Case(random_table(np.random.default_rng(4), 9, 256, 64), [60, 100, 250], [1, 2, 3], rows=4, offsets=[1, 2])


class Staged(launch.HostBackend):
    """The host backend as it is for tensors that are elsewhere, on tensors that are not."""

    def prepare(self, inputs: launch.PlanInputs) -> launch.Prepared:
        prepared = super().prepare(inputs)
        return launch.Prepared(staged.staged_launcher(inputs), prepared.grids, self.name, ("staged",))


def harness(case: Case, **form: Any) -> Harness:
    """A harness whose plan is staged."""
    made = Harness(HOST, case, planner=planner_of(case, HOST, way=Staged()), **form)
    assert made.plan.explain().data["fallbacks"] == ["staged"]
    return made


@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_handed_cases(handed: dict[str, Any]) -> None:
    harness(case_of(handed)).refresh()


def test_status_is_of_the_runs_since_the_reset() -> None:
    made = harness(ROUND)
    made.refresh()
    made.refresh(ROUND.but(seq_lens=[60, 100, 9999]))
    made.refresh()


def test_page_table_tails_are_left_alone() -> None:
    made = harness(ROUND, page_gap=2)
    made.refresh()
    made.refresh(ROUND.but(seq_lens=[1, 2, 3]))


@pytest.mark.parametrize("mode", MODES)
def test_hostile_numbers(mode: str) -> None:
    made = harness(hostile_case(mode, Inputs()))
    made.refresh()
    assert int(made.plan.status()) == status_bits(mode)


@pytest.mark.parametrize("way", [Staged(), launch.HostBackend()], ids=["staged", "host"])
def test_plans_made_in_inference_mode_run_outside(way: launch.Backend) -> None:
    """sgl-project/sglang issue 33470. Mirrors and status words of inference mode could not be written outside."""
    arena = Arena(2, ROUND.rows, ROUND.ratio, ROUND.page_columns)
    with torch.inference_mode():
        plan = planner_of(ROUND, HOST, way=way).plan(step_buffers(arena, ROUND.offsets))
    plan.reset_status()
    plan.run(**live_inputs(ROUND, "cpu"))
    Harness.check_arena(arena, ROUND)


def test_mirrors_are_on_the_cpu_whatever_the_default_device() -> None:
    """vllm-project/vllm pull 11233."""
    arena = Arena(2, ROUND.rows, ROUND.ratio, ROUND.page_columns)
    planner = planner_of(ROUND, HOST, way=Staged())
    torch.set_default_device("meta")
    try:
        plan = planner.plan(step_buffers(arena, ROUND.offsets))
    finally:
        torch.set_default_device(None)
    plan.run(**live_inputs(ROUND, "cpu"))
    Harness.check_arena(arena, ROUND)


def test_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied then."""
    monkeypatch.setattr(staged, "is_capturing", lambda _device: True)
    made = harness(ROUND)
    made.arena.poison()
    with pytest.raises(LaunchError, match="staged through the host cannot be recorded"):
        made.plan.run(**live_inputs(ROUND, "cpu"))
    made.arena.assert_untouched()
