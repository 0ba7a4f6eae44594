"""On a Python without the GIL: it stays off, and threads that share a plan get what one thread gets."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig

import pytest

pytestmark = pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")

CODE = """
import json, sys, threading
import torch
import qsa_group

backend = sys.argv[1]
tokens = torch.arange(4 * 256, dtype=torch.int32).view(4, 256)
table = qsa_group.RequestTable(tokens, compress_ratio=4, page_size=64)
planner = qsa_group.ReplayPlanner(table, backend=backend, _driver="stub" if backend == "direct" else "cuda")
lengths = [torch.full((3,), -7, dtype=torch.int32) for _ in range(2)]
plan = planner.plan([qsa_group.StepBuffers(step + 1, sequence_lengths=lengths[step]) for step in range(2)])
lens, slots = torch.tensor([5, 250, 9]), torch.tensor([1, 2, 3])
start = threading.Barrier(8)

def work():
    start.wait()
    for _ in range(5_000):
        plan.run(lens, slots)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stats = planner.stats()
found = [plan.backend, stats["runs"], stats["launches"], stats["step_refreshes"], *(step.tolist() for step in lengths)]
print(json.dumps([found, sys._is_gil_enabled()]))
"""

POISON = [-7, -7, -7]


@pytest.mark.parametrize(
    ("backend", "options", "outputs"),
    [
        ("host", ["-W", "error::RuntimeWarning"], [[6, 251, 10], [7, 252, 11]]),
        # Triton, which compiles for this backend, has not declared that it needs no GIL; the driver here is a stub.
        ("direct", ["-X", "gil=0"], [POISON, POISON]),
    ],
)
def test_the_gil_stays_off_and_no_call_is_lost(backend: str, options: list[str], outputs: list[list[int]]) -> None:
    done = subprocess.run([sys.executable, *options, "-c", CODE, backend], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, gil = json.loads(done.stdout.splitlines()[-1])
    assert found == [backend, 40_000, 40_000, 80_000, *outputs]
    assert not gil
