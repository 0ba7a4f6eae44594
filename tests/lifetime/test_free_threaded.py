"""On a Python without the GIL: it stays off, and threads that share a plan get what one thread gets."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has a GIL")

CODE = """
import json, sys, threading
import torch
import qsa_group
from qsa_group import launch

backend = sys.argv[1]
tokens = torch.arange(4 * 256, dtype=torch.int32).view(4, 256)
table = qsa_group.RequestTable(tokens, compress_ratio=4, page_size=64)
way = launch.DirectBackend(launch.StubDriver()) if backend == "direct" else backend
planner = qsa_group.ReplayPlanner(table, backend=way)
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
WARNINGS_FAIL = ["-W", "error::RuntimeWarning"]
"""Python warns where a module turns on the GIL."""


def run(code: str, options: list[str], *arguments: str) -> list[Any]:
    """What a Python process of its own prints last, as JSON."""
    command = [sys.executable, *options, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("backend", "options", "outputs"),
    [
        ("host", WARNINGS_FAIL, [[6, 251, 10], [7, 252, 11]]),
        # Triton, which compiles for this backend, has not declared that it needs no GIL; the driver here is a stub.
        ("direct", ["-X", "gil=0"], [POISON, POISON]),
    ],
)
def test_the_gil_stays_off_and_no_call_is_lost(backend: str, options: list[str], outputs: list[list[int]]) -> None:
    found, gil = run(CODE, options, backend)
    assert found == [backend, 40_000, 40_000, 80_000, *outputs]
    assert not gil


TAKE_TURNS = """
import json, sys, threading
import torch
import qsa_group

THREADS, ROUNDS, ROWS, WIDTH = 4, 200, 1 << 14, 256
tokens = torch.arange(8 * WIDTH, dtype=torch.int32).view(8, WIDTH)
table = qsa_group.RequestTable(tokens, compress_ratio=4, page_size=64)
planner = qsa_group.ReplayPlanner(table, backend="host")

def buffers(offset):
    names = ("sequence_lengths", "row_req_pool_indices", "prefix_lengths", "logical_positions")
    vectors = {name: torch.zeros(ROWS, dtype=torch.int32) for name in names}
    return qsa_group.StepBuffers(offset, page_table=torch.zeros((ROWS, 1), dtype=torch.int32), **vectors)

steps = [buffers(1), buffers(2)]
# Two plans over one memory, as two owners of the same graph would have.
plans = [planner.plan(steps, padding=padding) for padding in ("count", "slot")]
assert plans[0] is not plans[1] and [len(plan.groups) for plan in plans] == [1, 1]
lens = [torch.full((ROWS,), 10 * (thread + 1)) for thread in range(THREADS)]
slots = [torch.full((ROWS,), thread + 1) for thread in range(THREADS)]
winners, torn = set(), []

def look():
    thread = int(steps[0].sequence_lengths[0]) // 10 - 1
    winners.add(thread)
    for offset, step in enumerate(steps, 1):
        length = 10 * (thread + 1) + offset
        wanted = {
            "sequence_lengths": length,
            "row_req_pool_indices": thread + 1,
            "prefix_lengths": length - 1,
            "logical_positions": length - 1,
            "page_table": (thread + 1) * WIDTH // 64,
        }
        for name, value in wanted.items():
            found = [int(end) for end in getattr(step, name).aminmax()]
            if found != [value, value]:
                torn.append([offset, name, value, found])

meet, looked = threading.Barrier(THREADS), threading.Barrier(THREADS, action=look)

def work(thread):
    for _ in range(ROUNDS):
        meet.wait()
        plans[thread % 2].run(lens[thread], slots[thread])
        looked.wait()

threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([planner.stats()["runs"], len(winners), len(torn), torn[:3], sys._is_gil_enabled()]))
"""


def test_refreshes_of_one_memory_take_turns() -> None:
    """Threads with batches of their own refresh the same buffers, a bucket large enough to be at it together: what they
    leave is of one batch in every buffer and row, whichever was last.
    """
    runs, winners, torn, first, gil = run(TAKE_TURNS, WARNINGS_FAIL)
    assert (torn, first) == (0, [])
    assert runs == 800
    assert winners > 1
    assert not gil
