"""What other launchers get to start the kernel of a plan: the very words that the core packs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from qsa_group import FIELDS, ReplayPlan
from qsa_group.launch import DirectBackend, StubDriver

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the kernel is compiled")

BENCHES = Path(__file__).resolve().parents[2] / "benches"


@pytest.fixture(autouse=True)
def _benches_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES))


@pytest.mark.parametrize(("mode", "steps"), [("decode", 2), ("target_verify", 1), ("draft_extend", 1)])
def test_a_recorded_launch_fits_the_compiled_kernel(mode: str, steps: int) -> None:
    from grid.inputs import Form, live_inputs
    from grid.launchers import RecordingBackend, recorded_launch
    from grid.options import Point
    from lib.planners import Planners
    from lib.workload import Workload

    class OnCpu(RecordingBackend):
        """Compiles without a GPU, and loads nothing."""

        def refusal(self, device: torch.device) -> None:
            return None

        def load(self, variant: object, table: object) -> None:
            pass

    form = Form(mode, draft_token_num=4, padding=0, dtype="int64")
    workload = Workload(FIELDS, "cpu", max_batch=8)
    planners = Planners(workload.set_context(4096), direct=DirectBackend(StubDriver()))
    buffers = [workload.buffers(8 * form.rows_per_request, step) for step in range(steps)]
    plan: ReplayPlan = planners.plan("direct", buffers, padding="count", **form.plan_options)
    inputs = live_inputs(workload, Point(8, steps, 4096, 1024), form).ours[0]
    launch = recorded_launch(plan, inputs, 90, OnCpu())
    seq_lens, slots = inputs[:2]
    # The addresses of the live inputs and of the table are among the words; scratch pointers are at the end.
    assert {seq_lens.data_ptr(), slots.data_ptr(), workload.table.data_ptr()} <= set(launch.words)
    assert launch.words[-launch.types.count("O") :] == [None] * launch.types.count("O")
    assert set(launch.types) == {"l", "O"}
    assert launch.programs > 0
    assert launch.plan.runs == 1
    assert planners.launches() == 0
