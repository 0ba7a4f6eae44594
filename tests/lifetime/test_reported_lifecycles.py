"""Faults of plans that outlive what they were made for, reported against neighbouring software.

Each docstring begins with the public thread that reported the fault.
"""

from __future__ import annotations

import resource
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.arena import Arena, shaped
from helpers.cases import random_table
from helpers.harness import HOST, Backend, Harness, live_inputs, mode_arguments, planner_of, refresh_once, step_buffers
from helpers.oracle import Case
from qsa_group import ReplayPlanner, StepBuffers


def table(slots: int, width: int, page: int = 64) -> np.ndarray:
    """A random table that is the same in every run."""
    return random_table(np.random.default_rng(5), slots, width, page)


def is_interpreted(backend: Backend) -> bool:
    """Whether a launch takes milliseconds a row."""
    return backend == Backend("triton", "cpu")


def test_metadata_object_swapped_after_capture(backend: Backend) -> None:
    """sgl-project/sglang pull 37975, 26019. What a graph has captured changes; a new object gets a plan of its own."""
    case = Case(table(4, 128), [62, 100], [1, 2], rows=2)
    captured, swapped = Arena(1, 2, 4, 2, backend.device), Arena(1, 2, 4, 2, backend.device)
    planner = planner_of(case, backend)
    metadata = SimpleNamespace(**captured.step(0))
    plan = planner.plan([StepBuffers(1, **vars(metadata))])
    metadata.__dict__.update(swapped.step(0))
    plan.run(**live_inputs(case, backend.device))
    captured.assert_holds(oracle.refresh(case))
    swapped.assert_untouched()

    captured.poison()
    rebuilt = planner.plan([StepBuffers(1, **vars(metadata))])
    assert rebuilt is not plan
    rebuilt.run(**live_inputs(case, backend.device))
    swapped.assert_holds(oracle.refresh(case))
    captured.assert_untouched()


def test_list_of_steps_changed_after_planning(backend: Backend) -> None:
    """sgl-project/sglang pull 37975, 26019: for the list itself."""
    case = Case(table(4, 128), [62, 100], [1, 2], rows=2, offsets=[1, 2])
    arena, other = Arena(2, 2, 4, 2, backend.device), Arena(2, 2, 4, 2, backend.device)
    steps = step_buffers(arena, case.offsets)
    plan = planner_of(case, backend).plan(steps)
    steps[0] = StepBuffers(9, **other.step(0))
    del steps[1]
    plan.run(**live_inputs(case, backend.device))
    arena.assert_holds(oracle.refresh(case))
    other.assert_untouched()


def test_dropped_plan_is_gone_and_its_buffers_stay_as_they_are(backend: Backend) -> None:
    """sgl-project/sglang pull 27140, 11780. Capture A, drop it, capture B."""
    tokens = table(4, 128)
    first = Harness(backend, Case(tokens, [62, 100], [1, 2], rows=2))
    first.refresh()
    assert first.planner.drop(first.plan) is True
    assert first.planner.stats()["cached"] == 0
    second = Harness(backend, Case(tokens, [62, 100, 5], [1, 2, 3], rows=3, offsets=[1, 2]), planner=first.planner)
    first.arena.poison()
    second.refresh()
    first.arena.assert_untouched()
    stats = first.planner.stats()
    assert (stats["cached"], stats["dropped"], stats["misses"]) == (1, 1, 2)


@pytest.mark.parametrize("mode", oracle.MODES)
def test_any_alignment_batch_and_padding_compiles_nothing(backend: Backend, mode: str) -> None:
    """vllm-project/vllm pull 57667, vllm-project/vllm-ascend pull 13637.

    One plan serves every address, batch, padding and dtype class.
    """
    window = 2 if mode == "target_verify" else 1
    sizes = [1, 3] if is_interpreted(backend) else [1, 3, 16, 17, 32]
    slots = max(sizes) + 2
    case = Case(
        table(slots, 64),
        [],
        [],
        rows=max(sizes) * window,
        mode=mode,
        draft_token_num=window if mode == "target_verify" else None,
        extend_lens=[] if mode == "draft_extend" else None,
    )
    harness = Harness(backend, case)
    first = min(sizes[-1], 8)
    harness.refresh(
        case.but(
            seq_lens=[9] * first,
            slots=[1] * first,
            extend_lens=[1] * first if mode == "draft_extend" else None,
        )
    )
    compiles = harness.planner.stats()["compiles"]
    for batch in sizes:
        for num_padding in (0, 1, 16):
            for form, dtype in (("contiguous", torch.int64), ("shifted", torch.int32), ("strided", torch.int64)):
                now = case.but(
                    seq_lens=[(7 * q) % 60 + 1 for q in range(batch)],
                    slots=[q + 1 for q in range(batch)],
                    extend_lens=[q % 2 for q in range(batch)] if mode == "draft_extend" else None,
                    num_padding=num_padding,
                )
                arguments = live_inputs(now, backend.device)
                for name, values in (("seq_lens", now.seq_lens), ("req_pool_indices", now.slots)):
                    arguments[name] = shaped(values, dtype, backend.device, form)
                harness.arena.poison()
                harness.plan.run(**arguments)
                harness.check(now)
    assert harness.planner.stats()["compiles"] == compiles
    assert harness.planner.stats()["plans"] == 1


def test_a_thousand_calls_that_all_differ_keep_memory_flat(backend: Backend) -> None:
    """vllm-project/vllm pull 41834."""
    calls = 20 if is_interpreted(backend) else 1000
    case = Case(table(10, 256), [5] * 8, range(1, 9), rows=8, offsets=[1, 2])
    harness = Harness(backend, case)
    rng = np.random.default_rng(3)

    def call() -> None:
        batch = int(rng.integers(1, 9))
        now = case.but(
            seq_lens=rng.integers(0, 254, batch).tolist(),
            slots=rng.integers(1, 10, batch).tolist(),
            num_padding=int(rng.integers(0, batch + 1)),
        )
        harness.plan.run(**live_inputs(now, backend.device))

    for _ in range(calls // 5):
        call()
    stats = harness.planner.stats()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(calls):
        call()
    after = harness.planner.stats()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 * 1024, "kilobytes"
    for name in ("compiles", "plans", "cached", "hits", "misses"):
        assert after[name] == stats[name], name
    assert after["runs"] - stats["runs"] == calls


def in_threads(count: int, work: object, seconds: float = 120) -> None:
    """Runs `work(index)` in so many threads at once; fails on an exception in one of them or a hang."""
    assert callable(work)
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def body(index: int) -> None:
        try:
            start.wait()
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]


def test_eight_threads_each_with_a_plan_of_one_planner() -> None:
    """PyO3/pyo3 pull 4544. Ten thousand calls each."""
    tokens = table(10, 256)
    planner = planner_of(Case(tokens, [1], [1], rows=1), HOST)
    harnesses = [
        Harness(HOST, Case(tokens, [60 + 5 * i, 100 + i], [i + 1, i + 2], rows=3, offsets=[1, 2]), planner=planner)
        for i in range(8)
    ]

    def work(index: int) -> None:
        harness = harnesses[index]
        arguments = live_inputs(harness.case, "cpu")
        for call in range(10_000):
            harness.plan.run(**arguments)
            if call % 2500 == 0:
                harness.check()

    in_threads(8, work)
    for harness in harnesses:
        harness.check()
    stats = planner.stats()
    assert (stats["runs"], stats["launches"], stats["step_refreshes"]) == (80_000, 80_000, 160_000)


def test_eight_threads_on_one_plan() -> None:
    """PyO3/pyo3 pull 4544. Equal inputs: whoever comes last, the buffers are right at the end."""
    harness = Harness(HOST, Case(table(10, 256), [60, 100], [1, 2], rows=3, offsets=[1, 2]))

    def work(_: int) -> None:
        arguments = live_inputs(harness.case, "cpu")
        for _ in range(2_000):
            harness.plan.run(**arguments)

    in_threads(8, work)
    harness.check()
    assert harness.planner.stats()["runs"] == 16_000


def test_eight_threads_that_plan_drop_clear_and_run() -> None:
    """PyO3/pyo3 pull 4544. A small cache that every thread fights over."""
    tokens = table(10, 256)
    base = Case(tokens, [60, 100], [1, 2], rows=3)
    planner = planner_of(base, HOST, cache_capacity=3)

    def work(index: int) -> None:
        arenas = [Arena(2, 3, 4, base.page_columns) for _ in range(3)]
        case = base.but(offsets=[1, 2], seq_lens=[60 + index, 100 + index])
        arguments = live_inputs(case, "cpu")
        for turn in range(200):
            arena = arenas[turn % 3]
            plan = planner.plan(step_buffers(arena, case.offsets), **mode_arguments(case))
            if turn % 5 == 0:
                planner.drop(plan)
            if turn % 50 == 0:
                planner.clear()
                planner.stats()
            arena.poison()
            plan.run(**arguments)
            arena.assert_holds(oracle.refresh(case))

    in_threads(8, work)
    stats = planner.stats()
    assert stats["cached"] <= 3
    assert stats["runs"] == 8 * 200
    assert stats["hits"] + stats["misses"] == 8 * 200


def test_plans_of_two_planners_share_nothing(backend: Backend) -> None:
    """sgl-project/sglang pull 35275: for planners over different tables."""
    first = refresh_once(backend, Case(table(4, 128), [62, 100], [1, 2], rows=2))
    second = refresh_once(backend, Case(table(5, 256, 32), [200], [4], rows=1, page=32, ratio=8))
    assert isinstance(first.planner, ReplayPlanner)
    assert first.planner.clear() == 1
    assert second.planner.stats()["cached"] == 1
    first.arena.poison()
    second.refresh()
    first.arena.assert_untouched()
    first.refresh()
