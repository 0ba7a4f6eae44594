"""One launch for several graphs of a round (``planner.join``) against a launch for each.

    python benches/together.py --json together.json

``draft+verify`` are the draft steps and the verify rows of one round; ``all`` is draft extend with the next draft
and verify. GPU time as nodes of CUDA graphs, host time of direct runs, in microseconds for all of them together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch

from _common import Variant, Workload, emit, environment, gpu_time, host_times, looped, summary
from _ours import Planners

DRAFT_STEPS = 2


def apart(plans: Sequence[Any]) -> Callable[..., None]:
    """A launch for each plan; draft extend, which comes first, takes the extend lengths."""
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
    """Times of both ways, for both sets of plans."""
    planners = Planners(workload.set_context(context), ("direct",))
    generator = torch.Generator().manual_seed(3)
    lens = torch.randint(1, window + 1, (batch,), generator=generator, dtype=torch.int32).to(workload.device)
    inputs: list[Any] = [(*pair, 0, lens) for pair in workload.live(batch, live, room=16)]
    rows = batch * window
    steps = [workload.buffers(batch, step) for step in range(DRAFT_STEPS)]
    window_arguments = {"mode": "target_verify", "draft_token_num": window}
    draft = planners.plan("direct", steps, padding="slot")
    verify = planners.plan("direct", [workload.buffers(rows, DRAFT_STEPS)], padding="slot", **window_arguments)
    extend = planners.plan("direct", [workload.buffers(rows, DRAFT_STEPS + 1)], padding="slot", mode="draft_extend")
    points = []
    for name, plans in (("draft+verify", [draft, verify]), ("all", [extend, draft, verify])):
        joined = planners.planners["direct"].join(plans)
        extends = extend in plans
        calls = {"apart": apart(plans), "joined": joined.run}
        given = inputs if extends else [one[:2] for one in inputs]
        found: dict[str, Any] = {"plans": name, "batch": batch, "context": context, "live": live}
        found["launches"] = len(joined.launches)
        found["gpu_us"] = {way: gpu_time(call, given) for way, call in calls.items()}
        variants = [Variant(way, looped(call, given), len(plans)) for way, call in calls.items()]
        host_times(variants, torch.cuda.synchronize)
        found["host_us"] = {variant.name: summary(variant.samples, 1e6) for variant in variants}
        points.append(found)
    return points


def describe(point: dict[str, Any]) -> str:
    """A point in one line."""
    parts = [f"{point['plans']:<13} batch {point['batch']:<4} {point['context'] // 1024}K/{point['live'] // 1024}K"]
    for kind in ("gpu_us", "host_us"):
        one, other = (point[kind][way]["median"] for way in ("apart", "joined"))
        parts.append(f"{kind[:-3]} apart {one:.2f} joined {other:.2f} ({other / one:.2f})")
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
    workload = Workload("cuda", max_steps=DRAFT_STEPS + 2)
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
