"""How the kernel is started: which way, when it must be another, and what happens when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cases import random_table
from helpers.harness import Backend, Harness, live_inputs, planner_of
from helpers.hooks import launch_hook
from helpers.oracle import Case
from qsa_group import LaunchError
from qsa_group.kernel import tilings_of_binaries

ROUND = Case(random_table(np.random.default_rng(4), 9, 256, 64), [60, 100, 250], [1, 2, 3], rows=4, offsets=[1, 2])


def test_auto_is_the_direct_way() -> None:
    """Nothing on a CUDA machine may quietly run on a slower path."""
    harness = Harness(Backend("auto", "cuda"), ROUND)
    assert (harness.planner.backend, harness.plan.backend) == ("direct", "direct")
    assert harness.plan.explain().data["fallbacks"] == []
    harness.refresh()


def test_launch_hooks_see_every_launch() -> None:
    """While a profiler has set Triton's hooks, launches go through Triton's launcher, and `explain` says so."""
    harness = Harness(Backend("direct", "cuda"), ROUND)
    harness.refresh()
    assert harness.plan.explain().data["fallbacks"] == []
    with launch_hook() as calls:
        harness.refresh()
        harness.refresh()
    assert len(calls) == 2 * len(harness.plan.groups)
    (fallback,) = harness.plan.explain().data["fallbacks"]
    assert "hook" in fallback
    assert fallback in harness.plan.explain()
    harness.refresh()
    assert len(calls) == 2 * len(harness.plan.groups)
    assert harness.planner.stats()["hooked_runs"] == 2


def test_what_raises_in_tritons_launcher_is_a_launch_error(gpu_backend: Backend) -> None:
    harness = Harness(gpu_backend, ROUND)
    with launch_hook(RuntimeError("the profiler is gone")), pytest.raises(LaunchError, match="the profiler is gone"):
        harness.refresh()
    harness.refresh()


def test_plan_made_while_a_hook_is_set_still_runs_right() -> None:
    with launch_hook() as calls:
        harness = Harness(Backend("direct", "cuda"), ROUND)
        harness.refresh()
        assert len(calls) == len(harness.plan.groups)
    harness.refresh()


def test_nothing_is_compiled_after_planning(gpu_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm pull 57667 and others, by Triton's own count."""
    from triton import knobs

    seen: list[Any] = []
    harness = Harness(gpu_backend, ROUND.but(rows=33))
    listener = knobs.compilation.listener
    knobs.compilation.listener = lambda *args, **kwargs: seen.append(args)
    try:
        for batch in (1, 3, 16, 17, 32):
            for num_padding in (0, 1, 16):
                for start in (0, 1):
                    lens = torch.full((batch + 1,), 60, dtype=torch.int64, device="cuda")[start : start + batch]
                    slots = torch.ones(batch, dtype=torch.int32, device="cuda")
                    harness.plan.run(lens, slots, num_padding)
        torch.cuda.synchronize()
        assert seen == []
        # What another test has compiled is not compiled again.
        monkeypatch.setattr("qsa_group.kernel.compile._compiled", {})
        monkeypatch.setattr("qsa_group.launch.loading._by_triton", {})
        monkeypatch.setattr("qsa_group.launch.loading._by_driver", {})
        Harness(gpu_backend, ROUND.but(rows=5))
        assert seen, "the listener has to hear of a layout that is new here"
    finally:
        knobs.compilation.listener = listener


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_no_bucket_compiles_after_warmup(gpu_backend: Backend, num_steps: int) -> None:
    """vllm-project/vllm-ascend pull 13637.

    Buckets of other sizes of one graph share binaries: one, and a few for the fewest rows and steps.
    """
    layout = ROUND.but(offsets=[1, 2, 3][:num_steps])
    planner = planner_of(layout, gpu_backend)
    planner.warmup(num_steps)
    compiles = planner.stats()["compiles"]
    for rows in (1, 2, 3, 8, 9, 16, 17, 32, 300):
        harness = Harness(gpu_backend, layout.but(rows=rows, seq_lens=[9], slots=[1]), planner=planner)
        harness.refresh()
    assert planner.stats()["compiles"] == compiles
    assert compiles >= len(tilings_of_binaries("decode", num_steps))


def test_direct_and_triton_launches_leave_the_same_bytes() -> None:
    first, second = (Harness(Backend(name, "cuda"), ROUND, shift=1) for name in ("direct", "triton"))
    for harness in (first, second):
        harness.refresh()
    assert torch.equal(first.arena.memory, second.arena.memory)


FAILING_LAUNCH = """
import json, sys
sys.path[:0] = {paths!r}
import torch
from gpu.test_launching import ROUND
from helpers.harness import Backend, Harness, live_inputs

harness = Harness(Backend({backend!r}, "cuda"), ROUND)
harness.refresh()
arguments = live_inputs(ROUND, "cuda")
torch.cuda.synchronize()
torch.zeros(1, device="cuda")[torch.tensor([10**6], device="cuda")]  # a device-side assertion
try:
    torch.cuda.synchronize()
except Exception:
    pass
launches = harness.planner.stats()["launches"]
try:
    harness.plan.run(**arguments)
    said = None
except Exception as error:
    said = [type(error).__name__, getattr(error, "name", ""), str(error)]
print(json.dumps([said, harness.planner.stats()["launches"] - launches]))
sys.stdout.flush()
import os
os._exit(0)
"""


def test_launch_that_fails_is_an_error(gpu_backend: Backend) -> None:
    """pytorch/pytorch pull 112154. In a process of its own, whose context is broken by another kernel's assertion."""
    tests = Path(__file__).resolve().parents[1]
    code = FAILING_LAUNCH.format(paths=[str(tests)], backend=gpu_backend.name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said, launches = json.loads(done.stdout.splitlines()[-1])
    assert said is not None, "a launch into a broken context went through in silence"
    assert launches == 0
    if gpu_backend.name == "direct":
        kind, name, text = said
        assert kind == "LaunchError"
        assert name.startswith("CUDA_ERROR_")
        assert name in text


def test_host_backend_serves_tensors_of_the_device() -> None:
    """The slow way that is always there: copies in, copies out, the same values."""
    harness = Harness(Backend("host", "cuda"), ROUND, page_gap=2)
    harness.refresh()
    (fallback,) = harness.plan.explain().data["fallbacks"]
    assert "host" in fallback
    hostile = ROUND.but(seq_lens=[60, 100, 9999])
    harness.refresh(hostile)
    harness.refresh()
    harness.plan.run(**live_inputs(hostile, "cuda"))
    assert int(harness.plan.status()) != 0
