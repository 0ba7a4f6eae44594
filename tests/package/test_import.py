"""What `import qsa_group` needs, costs and loads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

BLOCK_TRITON = """
import importlib.abc, json, sys, time

class NoTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

def loaded(name):
    with open("/proc/self/maps") as maps:
        return any(name in line for line in maps)
"""


def run_python(code: str) -> Any:
    """What a fresh interpreter says as JSON on its last line."""
    done = subprocess.run([sys.executable, "-c", BLOCK_TRITON + code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_without_triton() -> None:
    code = """
sys.meta_path.insert(0, NoTriton())
import torch
import qsa_group
table = qsa_group.RequestTable(torch.zeros((3, 64), dtype=torch.int32), compress_ratio=4, page_size=64)
lengths = torch.zeros(2, dtype=torch.int32)
planner = qsa_group.ReplayPlanner(table)
planner.plan([qsa_group.StepBuffers(1, sequence_lengths=lengths)]).run(torch.tensor([5, 6]), torch.tensor([1, 2]))
try:
    qsa_group.ReplayPlanner(table, backend="triton").plan([qsa_group.StepBuffers(1, sequence_lengths=lengths)])
    refused = ""
except qsa_group.UnsupportedError as error:
    refused = str(error)
print(json.dumps([planner.backend, lengths.tolist(), refused, "triton" in sys.modules]))
"""
    backend, lengths, refused, imported = run_python(code)
    assert (backend, lengths) == ("host", [6, 7])
    assert "riton" in refused
    assert not imported


def test_import_loads_neither_triton_nor_sglang_nor_the_driver() -> None:
    code = """
import torch
before = loaded("libcuda.so"), "triton" in sys.modules
import qsa_group
after = loaded("libcuda.so"), "triton" in sys.modules
print(json.dumps([before, after, sorted(m for m in sys.modules if m.startswith("sglang"))]))
"""
    before, after, sglang = run_python(code)
    assert after == before
    assert sglang == []


def test_refreshes_on_the_host_load_no_triton() -> None:
    """Triton takes a while to load, and on a free-threaded Python it turns on the GIL."""
    code = """
import torch
import qsa_group
table = qsa_group.RequestTable(torch.zeros((3, 64), dtype=torch.int32), compress_ratio=4, page_size=64)
lengths = torch.zeros(2, dtype=torch.int32)
planner = qsa_group.ReplayPlanner(table)
planner.warmup(2)
planner.plan([qsa_group.StepBuffers(1, sequence_lengths=lengths)]).run(torch.tensor([5, 6]), torch.tensor([1, 2]))
print(json.dumps([lengths.tolist(), "triton" in sys.modules]))
"""
    assert run_python(code) == [[6, 7], False]


def test_import_costs_little_beyond_torch() -> None:
    """The best of a few, in processor time, so that a busy machine does not fail it."""
    code = """
import torch
start = time.process_time()
import qsa_group
print(json.dumps(time.process_time() - start))
"""
    assert min(run_python(code) for _ in range(3)) < 0.1


@pytest.mark.parametrize(
    "name",
    [
        "RequestTable",
        "StepBuffers",
        "ReplayPlanner",
        "ReplayPlan",
        "ReplayStatus",
        "Explanation",
        "QsaGroupError",
        "LayoutError",
        "CapacityError",
        "PlanChangedError",
        "UnsupportedError",
        "LaunchError",
    ],
)
def test_public_name(name: str) -> None:
    import qsa_group

    assert name in qsa_group.__all__
    assert getattr(qsa_group, name).__doc__
