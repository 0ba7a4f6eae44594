"""Joined plans: what is refused, cached, counted and started, with the driver stubbed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import (
    HOST,
    Backend,
    Harness,
    live_inputs,
    mode_arguments,
    planner_of,
    step_buffers,
    stubbed,
)
from helpers.oracle import Case
from qsa_group import LaunchError, LayoutError, ReplayPlan, ReplayPlanner, launch
from qsa_group.kernel import KernelVariant

TABLE = random_table(np.random.default_rng(23), 12, 512, 64)
DRAFT = Case(TABLE, [60, 100, 250, 7], [1, 2, 3, 4], rows=6, offsets=[1, 2])
VERIFY = DRAFT.but(mode="target_verify", draft_token_num=3, rows=13, offsets=[1])
EXTEND = DRAFT.but(mode="draft_extend", extend_lens=[3, 0, 2, 9], rows=15, offsets=[1])
WHOLE = (EXTEND, DRAFT, VERIFY)


def test_what_cannot_be_joined() -> None:
    one, other = (Harness(HOST, DRAFT) for _ in range(2))
    cases: list[tuple[Any, str]] = [
        ([], "plans has length 0, must be at least 2"),
        ([one.plan], "plans has length 1, must be at least 2"),
        (None, "plans has type NoneType, must be a sequence of ReplayPlan"),
        ([one.plan, "plan"], r"plans\[1\] has type str, must be ReplayPlan"),
        ([one.plan, other.plan], r"plans\[1\] was planned over RequestTable\(.*\), must be over this planner's"),
        ([other.plan, one.plan], r"plans\[0\] was planned over"),
    ]
    for plans, message in cases:
        with pytest.raises(LayoutError, match=message) as caught:
            one.planner.join(plans)
        assert caught.value.field == "plans"


def _stubbed(*, fails: bool = False) -> tuple[ReplayPlan, list[ReplayPlan], ReplayPlanner]:
    planner = stubbed(DRAFT, fails=fails)
    plans = []
    for case in WHOLE:
        arena = Arena(case.steps, case.rows, 4, case.page_columns)
        plans.append(planner.plan(step_buffers(arena, case.offsets), **mode_arguments(case)))
    return planner.join(plans), plans, planner


def test_launches_are_counted() -> None:
    """One launch instead of three, by a stand-in for the driver."""
    joined, _plans, planner = _stubbed()
    arguments = live_inputs(EXTEND, "cpu")
    for _ in range(3):
        joined.run(**arguments)
    stats = planner.stats()
    assert (stats["runs"], stats["launches"], stats["step_refreshes"]) == (3, 3, 12)
    explained = joined.explain()
    assert (explained.data["launches"], explained.data["step_by_step_launches"], explained.data["runs"]) == (1, 4, 3)
    assert "4 steps in 1 launch" in explained
    assert "launch 0: step 0 (15 rows); steps 1, 2 (6 rows); step 3 (13 rows)" in explained
    assert explained.data["fallbacks"] == []
    assert "draft_extend + decode + target_verify" in repr(joined)


def test_the_same_join_is_cached() -> None:
    joined, plans, planner = _stubbed()
    assert planner.join(plans) is joined
    assert planner.join(plans[::-1]) is not joined


def test_a_failing_launch_raises() -> None:
    joined, _plans, planner = _stubbed(fails=True)
    with pytest.raises(LaunchError):
        joined.run(**live_inputs(EXTEND, "cpu"))
    assert planner.stats()["launches"] == 0


def test_empty_buckets_are_no_launches() -> None:
    """Nothing is started for them, so nothing is counted."""
    planner = stubbed(DRAFT)
    plans = []
    for case in (EXTEND, EXTEND.but(extend_lens=[1, 1, 1, 1])):
        arena = Arena(1, 0, 4, case.page_columns)
        plans.append(planner.plan(step_buffers(arena, [1]), "draft_extend"))
    for plan in (*plans, planner.join(plans)):
        plan.run(**live_inputs(EXTEND, "cpu"))
    stats = planner.stats()
    assert (stats["runs"], stats["launches"], stats["step_refreshes"]) == (3, 0, 0)


class HookedDriver(launch.StubDriver):
    """A stub with a list of hooks, and Triton's launcher loaded beside the stub."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def hooks(self) -> list[list[Any]]:
        return [self.calls]


def test_set_hooks_lead_to_tritons_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler sees the joined launch, by Triton's launcher."""
    started: list[tuple[int, int]] = []
    start = lambda _self, index, programs, _words: started.append((index, programs))  # noqa: E731
    monkeypatch.setattr(launch.triton.TritonLauncher, "start", start)
    driver = HookedDriver()
    planner = planner_of(DRAFT, Backend("direct", "cpu"), way=launch.DirectBackend(driver))
    members = [Harness(Backend("direct", "cpu"), case, planner=planner) for case in (DRAFT, VERIFY)]
    joined = planner.join([member.plan for member in members])
    driver.calls.append(print)
    joined.run(**live_inputs(DRAFT, "cpu"))
    assert [index for index, _ in started] == [0]
    (fallback,) = joined.explain().data["fallbacks"]
    assert fallback.startswith("in 1 of 1 runs Triton launch hooks were set")
    driver.calls.clear()
    joined.run(**live_inputs(DRAFT, "cpu"))
    assert len(started) == 1
    stats = planner.stats()
    assert (stats["runs"], stats["launches"], stats["hooked_runs"]) == (2, 2, 1)


class RefusingDriver(launch.StubDriver):
    """A stub that must not start kernels over so many groups."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def load(self, variant: KernelVariant, device: torch.device) -> Any:
        return launch.Refusal("it is odd") if len(variant.groups) == self.groups else super().load(variant, device)


@pytest.mark.parametrize("groups", [1, 3])
def test_what_must_not_be_started_directly_is_triton_s(monkeypatch: pytest.MonkeyPatch, groups: int) -> None:
    """Every launch of the plan, all loaded for Triton's launcher; `explain` says why."""
    loads: list[int] = []
    load = lambda variant, _device: loads.append(len(variant.groups))  # noqa: E731
    monkeypatch.setattr(launch.direct, "load_by_triton", load)
    planner = planner_of(DRAFT, Backend("direct", "cpu"), way=launch.DirectBackend(RefusingDriver(groups)))
    cases = (*WHOLE, DRAFT.but(rows=9))
    plans = [Harness(Backend("direct", "cpu"), case, planner=planner).plan for case in cases]
    assert {plan.backend for plan in plans} == {"direct" if groups == 3 else "triton"}
    loads.clear()
    joined = planner.join(plans)
    assert (joined.backend, [len(launch) for launch in joined.launches]) == ("triton", [3, 1])
    assert loads == [3, 1]
    assert joined.explain().data["fallbacks"] == ["not started directly but by Triton's launcher: it is odd"]


def test_joins_run_from_several_threads() -> None:
    """Nothing of a join is changed by a call but its counters."""
    joined, _plans, planner = _stubbed()
    arguments = live_inputs(EXTEND, "cpu")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [joined.run(**arguments) for _ in range(200)], range(4)))
    assert (planner.stats()["launches"], joined.explain().data["runs"]) == (800, 800)
