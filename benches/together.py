"""One launch for several graphs of a round (`planner.join`) against a launch for each.

    python benches/together.py --json together.json

`draft+verify` are the draft steps and the verify rows of one round. `all` is draft extend with the next draft and
verify. GPU time as nodes of CUDA graphs and host time of direct runs, in microseconds for all plans together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lib.environment import environment
from lib.gpu_timing import gpu_time
from lib.planners import Planners
from lib.results import emit
from lib.timing import LiveSet, TimedCall, host_times, looped, summary
from lib.workload import Workload
from qsa_group import FIELDS, ReplayPlan, ReplayPlanner

DRAFT_STEPS = 2


def apart(plans: Sequence[ReplayPlan]) -> Callable[..., None]:
    """A launch for each plan. Draft extend, which comes first, takes the extend lengths."""
    runs = [plan.run for plan in plans]
    if plans[0].mode == "draft_extend":
        extend, draft, verify = runs

        def three(seq_lens: Any, slots: Any, padding: int, extend_lens: Any) -> None:
            extend(seq_lens, slots, padding, extend_lens)
            draft(seq_lens, slots)
            verify(seq_lens, slots)

        return three
    draft, verify = runs

    def two(seq_lens: Any, slots: Any) -> None:
        draft(seq_lens, slots)
        verify(seq_lens, slots)

    return two


def measure(batch: int, context: int, live: int, window: int, workload: Workload) -> list[dict[str, Any]]:
    """Times of both ways, for both sets of plans.

    Args:
        batch: requests.
        context: tokens of a slot of the request table.
        live: tokens of the longest request.
        window: verify rows of a request.
        workload: the table and the buffers.
    """
    planners = Planners(workload.set_context(context), "direct")
    generator = torch.Generator().manual_seed(3)
    lens = torch.randint(1, window + 1, (batch,), generator=generator, dtype=torch.int32).to(workload.device)
    inputs: list[LiveSet] = [(*pair, 0, lens) for pair in workload.live(batch, live, room=16)]
    rows = batch * window
    steps = [workload.buffers(batch, step) for step in range(DRAFT_STEPS)]
    draft = planners.plan("direct", steps, padding="slot")
    verify = planners.plan(
        "direct", [workload.buffers(rows, DRAFT_STEPS)], mode="target_verify", draft_token_num=window, padding="slot"
    )
    extend = planners.plan("direct", [workload.buffers(rows, DRAFT_STEPS + 1)], mode="draft_extend", padding="slot")
    planner = planners.planners["direct"]
    at = {"batch": batch, "context": context, "live": live}
    return [
        {"plans": "draft+verify", **at, **times(planner, [draft, verify], [pair[:2] for pair in inputs])},
        {"plans": "all", **at, **times(planner, [extend, draft, verify], inputs)},
    ]


def times(planner: ReplayPlanner, plans: list[ReplayPlan], inputs: list[LiveSet]) -> dict[str, Any]:
    """Launches of the joined plan, and GPU and host times of both ways."""
    joined = planner.join(plans)
    calls = {"apart": apart(plans), "joined": joined.run}
    gpu = {way: gpu_time(call, inputs) for way, call in calls.items()}
    timed = [TimedCall(way, looped(call, inputs), len(plans)) for way, call in calls.items()]
    host_times(timed, torch.cuda.synchronize)
    host = {call.name: summary(call.samples, 1e6) for call in timed}
    return {"launches": len(joined.launches), "gpu_us": gpu, "host_us": host}


def describe(point: dict[str, Any]) -> str:
    """A point in one line."""
    parts = [f"{point['plans']:<13} batch {point['batch']:<4} {point['context'] // 1024}K/{point['live'] // 1024}K"]
    for kind in ("gpu_us", "host_us"):
        separate, joined = (point[kind][way]["median"] for way in ("apart", "joined"))
        parts.append(f"{kind[:-3]} apart {separate:.2f} joined {joined:.2f} ({joined / separate:.2f})")
    return "  ".join(parts)


def main() -> int:
    """Prints a line a batch size and set of plans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=256, help="thousand tokens")
    parser.add_argument("--live", type=int, nargs="+", default=[8, 200], help="thousand tokens")
    parser.add_argument("--draft-token-num", type=int, default=4)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    workload = Workload(FIELDS, max_steps=DRAFT_STEPS + 2)
    points = []
    for live in options.live:
        for batch in options.batches:
            for point in measure(batch, options.context * 1024, live * 1024, options.draft_token_num, workload):
                points.append(point)
                print(describe(point), flush=True)
    emit({"bench": "together", "environment": environment(), "points": points}, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
