"""Refreshes that are recorded in a CUDA graph, and what must not happen while a capture is on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import Backend, Harness, live_inputs, mode_arguments, planner_of, step_buffers
from helpers.oracle import MODES, Case
from qsa_group import ReplayPlan, UnsupportedError

BATCH = 4


def case_in(mode: str, padding: str = "slot") -> Case:
    """A round with room for padding."""
    return Case(
        random_table(np.random.default_rng(8), 9, 256, 64),
        [60, 100, 250, 7],
        [1, 2, 3, 4],
        rows=3 * BATCH,
        mode=mode,
        offsets=[1, 2, 3] if mode == "decode" else [1],
        draft_token_num=3 if mode == "target_verify" else None,
        extend_lens=[3, 1, 2, 3] if mode == "draft_extend" else None,
        padding=padding,
    )


def replays(case: Case) -> list[Case]:
    """What later rounds write into the same input tensors."""
    return [
        case.but(seq_lens=[9, 10, 11, 12]),
        case.but(slots=[5, 0, 6, 0]),
        case.but(slots=[0, 0, 0, 0], seq_lens=[1, 1, 1, 1]),
        case.but(seq_lens=[256, 300, -7, 64], slots=[8, 1, 2, 99]),
        case,
    ]


def put(arguments: dict[str, Any], case: Case) -> None:
    """A round's values into the input tensors that a graph reads."""
    arguments["seq_lens"].copy_(torch.tensor(case.seq_lens))
    arguments["req_pool_indices"].copy_(torch.tensor(case.slots))
    if case.extend_lens is not None:
        arguments["extend_lens"].copy_(torch.tensor(case.extend_lens))


def recorded(plan: ReplayPlan, arguments: dict[str, Any]) -> torch.cuda.CUDAGraph:
    """A graph that holds one refresh."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(**arguments)
    return graph


@pytest.mark.parametrize("mode", MODES)
def test_recorded_refresh_follows_its_inputs(gpu_backend: Backend, mode: str) -> None:
    """Padding by slot: nothing on the host changes, so a replay is a whole refresh."""
    case = case_in(mode)
    harness = Harness(gpu_backend, case)
    arguments = live_inputs(case, gpu_backend.device)
    harness.refresh()
    graph = recorded(harness.plan, arguments)
    for later in replays(case):
        put(arguments, later)
        harness.arena.poison()
        harness.plan.reset_status()
        graph.replay()
        harness.check(later)


@pytest.mark.parametrize("mode", MODES)
def test_first_run_of_a_plan_is_inside_a_capture(gpu_backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 35427. Nothing is left to do at the first run."""
    case = case_in(mode)
    harness = Harness(gpu_backend, case)
    arguments = live_inputs(case, gpu_backend.device)
    compiles = harness.planner.stats()["compiles"]
    graph = recorded(harness.plan, arguments)
    harness.arena.assert_untouched()
    graph.replay()
    harness.check()
    assert harness.planner.stats()["compiles"] == compiles


def test_padding_by_count_is_what_it_was_at_the_capture(gpu_backend: Backend) -> None:
    case = case_in("decode", "count").but(num_padding=2)
    harness = Harness(gpu_backend, case)
    graph = recorded(harness.plan, live_inputs(case, gpu_backend.device))
    graph.replay()
    harness.check()


def test_two_layouts_inside_a_capture_with_room_for_one(gpu_backend: Backend) -> None:
    """sgl-project/sglang pull 35427.

    Planned in the capture after a warm-up: no compile, and no eviction before the capture ends.
    """
    case = case_in("decode")
    planner = planner_of(case, gpu_backend, cache_capacity=1)
    planner.warmup(case.steps, "decode")
    before = planner.stats()
    arenas = [Arena(3, case.rows, 4, case.page_columns, gpu_backend.device) for _ in range(2)]
    arguments = live_inputs(case, gpu_backend.device)
    graph = torch.cuda.CUDAGraph()
    plans = []
    with torch.cuda.graph(graph):
        for arena in arenas:
            plans.append(planner.plan(step_buffers(arena, case.offsets), **mode_arguments(case)))
            plans[-1].run(**arguments)
        during = planner.stats()
    assert (during["compiles"], during["evictions"]) == (before["compiles"], before["evictions"])
    for arena in arenas:
        arena.poison()
    graph.replay()
    for arena in arenas:
        arena.assert_holds(oracle.refresh(case))
    planner.plan(step_buffers(Arena(3, 3, 4, 4, gpu_backend.device), case.offsets), **mode_arguments(case))
    assert planner.stats()["cached"] == 1


def test_planning_an_unknown_kernel_inside_a_capture_is_refused_and_harmless(gpu_backend: Backend) -> None:
    """sgl-project/sglang pull 35427. A compile would break the capture: it is an error, not an attempt."""
    # A ratio of each backend's own: what one test has loaded, the next finds.
    ratio = {"triton": 8, "direct": 16}[gpu_backend.name]
    case = case_in("decode").but(ratio=ratio, page=2 * ratio)
    planner = planner_of(case, gpu_backend)
    arena = Arena(3, case.rows, ratio, case.page_columns, gpu_backend.device)
    arguments = live_inputs(case, gpu_backend.device)
    marker = torch.zeros(1, device=gpu_backend.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(UnsupportedError) as caught:
            planner.plan(step_buffers(arena, case.offsets), **mode_arguments(case))
        marker += 1
    assert "capture" in str(caught.value)
    graph.replay()
    assert float(marker) == 1
    plan = planner.plan(step_buffers(arena, case.offsets), **mode_arguments(case))
    plan.run(**arguments)
    arena.assert_holds(oracle.refresh(case))


def test_graph_of_a_dropped_plan_still_replays(gpu_backend: Backend) -> None:
    """Whoever keeps the plan keeps the graph's memory."""
    case = case_in("decode")
    harness = Harness(gpu_backend, case)
    arguments = live_inputs(case, gpu_backend.device)  # the graph reads them, so they are kept
    graph = recorded(harness.plan, arguments)
    harness.planner.drop(harness.plan)
    other = Harness(gpu_backend, case, planner=harness.planner)
    other.refresh()
    graph.replay()
    harness.check()


def test_input_that_overlaps_an_output_inside_a_capture(gpu_backend: Backend) -> None:
    """The snapshots of such a call are the graph's own memory."""
    case = case_in("decode").but(rows=BATCH, offsets=[1])
    harness = Harness(gpu_backend, case)
    lens = harness.arena.region("sequence_lengths")[0].copy_(torch.tensor(case.seq_lens))
    slots = torch.tensor(case.slots, dtype=torch.int32, device=gpu_backend.device)
    graph = recorded(harness.plan, {"seq_lens": lens, "req_pool_indices": slots})
    for call in range(1, 4):
        graph.replay()
        assert lens.tolist() == [n + call for n in case.seq_lens]
