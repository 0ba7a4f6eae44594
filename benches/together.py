"""What one launch for a round's decode steps and its verify rows could save, against a launch for each.

    python benches/together.py --json together.json

One launch for both writes what a decode launch with as many steps more as verify has rows a request writes, and reads
the request table for each verify row on top. So that launch's time stands for it, and the gain shown is the most that
there can be. It is GPU time as nodes of CUDA graphs, in microseconds a round; recorded refreshes cost the host nothing
either way.
"""

from __future__ import annotations

import argparse
from typing import Any

from _common import Workload, emit, environment, gpu_time
from _ours import Planners

DRAFT_STEPS = 2


def measure(batch: int, context: int, live: int, window: int, workload: Workload) -> dict[str, Any]:
    """Times of both launches in a row, of each alone, and of one with all rows."""
    table = workload.set_context(context)
    planners = Planners(table, ("direct",))
    inputs: list[Any] = workload.live(batch, live, room=16)
    rows = batch * window
    draft = planners.plan("direct", [workload.buffers(batch, step) for step in range(DRAFT_STEPS)], padding="slot")
    verify = planners.plan(
        "direct", [workload.buffers(rows, DRAFT_STEPS)], padding="slot", mode="target_verify", draft_token_num=window
    )
    steps = [workload.buffers(batch, step) for step in range(DRAFT_STEPS + window)]
    one = planners.plan("direct", steps, padding="slot")

    def both(*live_inputs: Any) -> None:
        draft.run(*live_inputs)
        verify.run(*live_inputs)

    calls = {"draft": draft.run, "verify": verify.run, "both": both, "one": one.run}
    found = {name: gpu_time(call, inputs)["median"] for name, call in calls.items()}
    return {"batch": batch, "context": context, "live": live, **found, "saved_us": found["both"] - found["one"]}


def main() -> int:
    """Prints a line a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=256, help="thousand tokens")
    parser.add_argument("--live", type=int, default=8, help="thousand tokens")
    parser.add_argument("--draft-token-num", type=int, default=4)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    workload = Workload("cuda")
    points = []
    for batch in options.batches:
        point = measure(batch, options.context * 1024, options.live * 1024, options.draft_token_num, workload)
        points.append(point)
        print(
            "  ".join(
                f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in point.items()
            ),
            flush=True,
        )
    emit({"bench": "together", "environment": environment(), "points": points}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
