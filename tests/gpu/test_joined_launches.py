"""Joined plans on the GPU: recorded, hooked, planned in a capture, and thousands of rounds against single plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_random_rounds import ROUNDS

from helpers.arena import POISON, Arena
from helpers.cases import random_table
from helpers.harness import Backend, Harness, live_inputs, planner_of, step_buffers
from helpers.hooks import launch_hook
from helpers.many_rounds import ROUNDS_BETWEEN_LOOKS
from helpers.oracle import Case
from qsa_group import ReplayPlan, ReplayPlanner, RequestTable, UnsupportedError

DRAFT = Case(
    random_table(np.random.default_rng(8), 9, 256, 64),
    [60, 100, 250, 7],
    [1, 2, 3, 4],
    rows=6,
    offsets=[1, 2],
    padding="slot",
)
VERIFY = DRAFT.but(mode="target_verify", draft_token_num=3, rows=14, offsets=[1])
EXTEND = DRAFT.but(mode="draft_extend", extend_lens=[3, 1, 2, 3], rows=12, offsets=[1])
WHOLE = (EXTEND, DRAFT, VERIFY)


def together(backend: Backend) -> tuple[ReplayPlan, list[Harness]]:
    """A whole round, joined."""
    planner = planner_of(DRAFT, backend)
    members = [Harness(backend, case, planner=planner) for case in WHOLE]
    return planner.join([member.plan for member in members]), members


def test_a_recorded_round_follows_its_inputs(gpu_backend: Backend) -> None:
    """First run inside the capture; every replay is a whole refresh of all three."""
    joined, members = together(gpu_backend)
    arguments = live_inputs(EXTEND, gpu_backend.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        joined.run(**arguments)
    for member in members:
        member.arena.assert_untouched()
    for lens, slots, extend in (
        ([60, 100, 250, 7], [1, 2, 3, 4], [3, 1, 2, 3]),
        ([9, 10, 11, 12], [5, 0, 6, 0], [0, 5, 0, 9]),
        ([256, 300, -7, 64], [8, 1, 2, 99], [12, 1, -1, 0]),
    ):
        for name, values in (("seq_lens", lens), ("req_pool_indices", slots), ("extend_lens", extend)):
            arguments[name].copy_(torch.tensor(values))
        joined.reset_status()
        for member in members:
            member.arena.poison()
        graph.replay()
        for member in members:
            extends = {"extend_lens": extend} if member.case.extend_lens is not None else {}
            Harness.check_arena(member.arena, member.case.but(seq_lens=lens, slots=slots, **extends))


def test_a_join_inside_a_capture_is_refused_where_its_kernel_is_not_loaded(gpu_backend: Backend) -> None:
    ratio = {"triton": 32, "direct": 64}[gpu_backend.name]
    rounds = [case.but(ratio=ratio) for case in WHOLE]
    planner = planner_of(rounds[0], gpu_backend)
    members = [Harness(gpu_backend, case, planner=planner) for case in rounds]
    plans = [member.plan for member in members]
    arguments = live_inputs(rounds[0], gpu_backend.device)
    graph = torch.cuda.CUDAGraph()
    marker = torch.zeros(1, device=gpu_backend.device)
    with torch.cuda.graph(graph):
        with pytest.raises(UnsupportedError, match="capture"):
            planner.join(plans)
        marker += 1
    graph.replay()
    assert float(marker) == 1
    planner.join(plans)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = planner.join(plans)
        again.run(**arguments)
    graph.replay()
    for member in members:
        Harness.check_arena(member.arena, member.case)


def test_launch_hooks_see_the_joined_launch() -> None:
    """A profiler sees the one launch, and `explain` says so."""
    joined, members = together(Backend("direct", "cuda"))
    assert (joined.backend, len(joined.launches)) == ("direct", 1)
    with launch_hook() as calls:
        joined.run(**live_inputs(EXTEND, "cuda"))
    assert len(calls) == 1
    for member in members:
        Harness.check_arena(member.arena, member.case)
    (fallback,) = joined.explain().data["fallbacks"]
    assert "hooks" in fallback


class Bucket:
    """The buffers and plans of a round's three graphs, over one table."""

    def __init__(self, planner: ReplayPlanner, batch: int, steps: int, window: int, columns: int) -> None:
        shapes = ((steps, batch), (1, batch * window), (1, batch * window))
        self.arenas = [Arena(count, rows, 4, columns, "cuda") for count, rows in shapes]
        draft, verify, extend = (step_buffers(arena, range(1, arena.steps + 1)) for arena in self.arenas)
        self.plans = [
            planner.plan(draft),
            planner.plan(verify, "target_verify", draft_token_num=window),
            planner.plan(extend, "draft_extend"),
        ]

    def poison(self) -> None:
        for arena in self.arenas:
            arena.poison()


@pytest.mark.parametrize(
    ("batch", "steps", "window", "pages"),
    [(1, 2, 4, 16), (8, 3, 4, 16), (64, 2, 4, 300), (33, 7, 8, 16), (200, 1, 2, 7)],
)
def test_rounds_as_the_plans_apart(gpu_backend: Backend, batch: int, steps: int, window: int, pages: int) -> None:
    """Every byte, by random rounds of any padding; the plans apart are judged elsewhere."""
    rng = np.random.default_rng(batch)
    count, slots = -(-ROUNDS // 5), batch + 9
    table = torch.from_numpy(random_table(rng, slots, pages * 64, 64)).cuda()
    planner = ReplayPlanner(RequestTable(table, compress_ratio=4, page_size=64), backend=gpu_backend.name)
    ours, apart = (Bucket(planner, batch, steps, window, pages) for _ in range(2))
    joined = planner.join(ours.plans)
    assert len(joined.launches) == 1
    lens, slot, extend = (
        torch.from_numpy(rng.integers(low, high, (count, batch))).cuda()
        for low, high in ((0, pages * 64 + 3), (0, slots + 1), (0, window + 1))
    )
    padding = rng.integers(0, 3, count)

    def differs(number: int) -> torch.Tensor:
        live: tuple[Any, ...] = (lens[number], slot[number].to(torch.int32), int(padding[number]))
        ours.poison()
        joined.run(*live, extend[number])
        apart.poison()
        for plan in apart.plans:
            plan.run(*live, extend[number] if plan.mode == "draft_extend" else None)
        pairs = zip(ours.arenas, apart.arenas, strict=True)
        return torch.stack([(one.memory != other.memory).any() for one, other in pairs]).any()

    for start in range(0, count, ROUNDS_BETWEEN_LOOKS):
        numbers = range(start, min(start + ROUNDS_BETWEEN_LOOKS, count))
        wrong = torch.stack([differs(number) for number in numbers]).nonzero().flatten().tolist()
        assert not wrong, f"rounds {[start + number for number in wrong]}"
    assert int(joined.status()) != 0, "hostile slots and lengths are among the rounds"
    assert all(bool((arena.region("sequence_lengths") != POISON).all()) for arena in ours.arenas)
