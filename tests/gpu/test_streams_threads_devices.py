"""Where and when a launch goes: streams, threads, devices; and that it only enqueues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cases import random_table
from helpers.harness import Backend, Harness, live_inputs
from helpers.oracle import MODES, Case
from helpers.strategies import Inputs
from qsa_group import PlanChangedError

SLEEP_CYCLES = 200_000_000  # about a tenth of a second


def case_in(mode: str = "decode") -> Case:
    """A small round."""
    return Case(
        random_table(np.random.default_rng(4), 9, 256, 64),
        [60, 100, 250],
        [1, 2, 3],
        rows=9,
        mode=mode,
        offsets=[1, 2] if mode == "decode" else [1],
        draft_token_num=3 if mode == "target_verify" else None,
        extend_lens=[3, 1, 2] if mode == "draft_extend" else None,
    )


def busy(stream: torch.cuda.Stream) -> None:
    """Keeps a stream at work for a while."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)


@pytest.mark.parametrize("mode", MODES)
def test_run_is_in_the_order_of_the_current_stream(gpu_backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 5419.

    The live inputs arrive late on the stream that is current at the call, and at no other.
    """
    harness = Harness(gpu_backend, case_in(mode))
    later = harness.case.but(seq_lens=[9, 10, 11])
    arguments = live_inputs(harness.case, gpu_backend.device)
    new = torch.tensor(later.seq_lens, device=gpu_backend.device)
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()):
        arguments["seq_lens"].copy_(torch.tensor(harness.case.seq_lens))
        harness.arena.poison()
        torch.cuda.synchronize()
        busy(stream)
        with torch.cuda.stream(stream):
            arguments["seq_lens"].copy_(new)
            harness.plan.run(**arguments)
        stream.synchronize()
        harness.check(later)


def test_run_waits_for_no_other_stream(gpu_backend: Backend) -> None:
    """sgl-project/sglang pull 5419.

    A launch on an idle side stream is done while the default stream is still at work.
    """
    harness = Harness(gpu_backend, case_in())
    arguments = live_inputs(harness.case, gpu_backend.device)
    harness.refresh()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    harness.arena.poison()
    torch.cuda.synchronize()
    default = torch.cuda.default_stream()
    busy(default)
    with torch.cuda.stream(side):
        harness.plan.run(**arguments)
    side.synchronize()
    assert not default.query(), "the default stream had to be busy for longer"
    torch.cuda.synchronize()
    harness.check()


@pytest.mark.parametrize("mode", MODES)
def test_run_does_not_wait_for_the_device(gpu_backend: Backend, mode: str) -> None:
    """The call comes back while the stream is still busy with what came before."""
    harness = Harness(gpu_backend, case_in(mode))
    arguments = live_inputs(harness.case, gpu_backend.device)
    harness.refresh()
    harness.arena.poison()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stream = torch.cuda.current_stream()
        busy(stream)
        start = time.perf_counter()
        harness.plan.run(**arguments)
        seconds = time.perf_counter() - start
        assert not stream.query(), "run waited for the stream"
        assert seconds < 0.05
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    harness.check()


@pytest.mark.parametrize("mode", MODES)
def test_run_allocates_nothing_on_the_device(gpu_backend: Backend, mode: str) -> None:
    """For any batch, padding, dtype and alignment."""
    harness = Harness(gpu_backend, case_in(mode))
    harness.refresh()
    calls = []
    for batch in range(4):
        for dtype in (torch.int32, torch.int64):
            for form in ("contiguous", "shifted", "strided"):
                case = harness.case
                now = case.but(
                    seq_lens=case.seq_lens[:batch],
                    slots=case.slots[:batch],
                    extend_lens=None if case.extend_lens is None else case.extend_lens[:batch],
                    num_padding=batch // 2,
                )
                how = Inputs(dtype, dtype, dtype, form, form, form)
                calls.append(live_inputs(now, gpu_backend.device, how))
    keys = ("allocation.all.allocated", "segment.all.allocated", "num_device_alloc")
    before = {key: torch.cuda.memory_stats().get(key) for key in keys}
    for arguments in calls:
        harness.plan.run(**arguments)
    assert {key: torch.cuda.memory_stats().get(key) for key in keys} == before
    torch.cuda.synchronize()


def in_fresh_thread(work: Callable[[], Any]) -> None:
    """Runs something in a thread of its own and passes on what it raises."""
    failures: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "the thread hangs"
    if failures:
        raise failures[0]


@pytest.mark.parametrize("mode", MODES)
def test_run_in_a_thread_that_never_touched_the_device(gpu_backend: Backend, mode: str) -> None:
    """Such a thread has no current context."""
    harness = Harness(gpu_backend, case_in(mode))
    arguments = live_inputs(harness.case, gpu_backend.device)
    torch.cuda.synchronize()
    in_fresh_thread(lambda: harness.plan.run(**arguments))
    torch.cuda.synchronize()
    harness.check()


def test_plan_in_a_thread_that_never_touched_the_device(gpu_backend: Backend) -> None:
    case = case_in().but(ratio=32)
    in_fresh_thread(lambda: Harness(gpu_backend, case).refresh())


def test_threads_on_streams_of_their_own(gpu_backend: Backend) -> None:
    """PyO3/pyo3 pull 4544: on the device."""
    harnesses = [Harness(gpu_backend, case_in().but(seq_lens=[10 + i, 60 + i, 120 + i])) for i in range(8)]

    def work(harness: Harness) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            arguments = live_inputs(harness.case, gpu_backend.device)
            for _ in range(500):
                harness.plan.run(**arguments)
            torch.cuda.current_stream().synchronize()
            harness.check()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=in_fresh_thread, args=(lambda h=h: work(h),)) for h in harnesses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for harness in harnesses:
        harness.check()


@pytest.mark.parametrize("mode", MODES)
def test_second_device_while_the_first_is_current(gpu_backend: Backend, mode: str) -> None:
    """linkedin/Liger-Kernel issue 1303. Tensors decide; the caller's device stays current."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    second = Backend(gpu_backend.name, "cuda:1")
    torch.cuda.set_device(0)
    harnesses = [Harness(Backend(gpu_backend.name, "cuda:0"), case_in(mode)), Harness(second, case_in(mode))]
    for _ in range(2):
        for harness in harnesses:
            harness.refresh()
            assert torch.cuda.current_device() == 0
    with torch.cuda.stream(torch.cuda.Stream("cuda:1")):
        current = torch.cuda.current_device()
        harnesses[1].refresh()
        harnesses[0].refresh()
        assert torch.cuda.current_device() == current
    # torch's own launches still go where they went: the context was put back.
    assert torch.ones(4, device="cuda").add_(1).tolist() == [2, 2, 2, 2]


def test_inputs_on_another_cuda_device_are_refused(gpu_backend: Backend) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    harness = Harness(gpu_backend, case_in())
    for device in ("cuda:1", "cpu"):
        arguments = {**live_inputs(harness.case, gpu_backend.device), "seq_lens": torch.ones(3).long().to(device)}
        with pytest.raises(PlanChangedError):
            harness.plan.run(**arguments)
    harness.arena.assert_untouched()


def test_inputs_on_the_host_are_refused(gpu_backend: Backend) -> None:
    harness = Harness(gpu_backend, case_in())
    for pinned in (False, True):
        lens = torch.ones(3, dtype=torch.int64)
        arguments = {
            **live_inputs(harness.case, gpu_backend.device),
            "seq_lens": lens.pin_memory() if pinned else lens,
        }
        with pytest.raises(PlanChangedError):
            harness.plan.run(**arguments)
    harness.arena.assert_untouched()
