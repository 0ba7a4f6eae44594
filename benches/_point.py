"""All measurements of one grid point of the launch bench."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from _common import (
    FIELDS,
    PAGE_SIZE,
    LiveSet,
    Tensors,
    Variant,
    Workload,
    attempt,
    gpu_samples,
    gpu_time,
    host_times,
    looped,
    record,
    summary,
)
from _ours import Planners, bare, kernel_of
from _report import Row, add_ratios
from _sglang import Baselines

ROUND_KERNELS = 60  # small kernels in the graph that stands for a draft
POISON = -7
SHORT_GRAPHS = 3  # graphs of the shortest launches that are measured
COPY_BLOCKS = (64, 128)  # pages of a program of the copy kernel; the faster one counts


class Bench:
    """Measures grid points one after the other; what they share is made once."""

    def __init__(
        self, options: argparse.Namespace, workload: Workload, sglang: Any, empty: Callable[..., None]
    ) -> None:
        self.options = options
        self.mode: str = options.mode
        self.workload = workload
        self.sglang = sglang
        self.empty = empty
        self._work = torch.zeros(1024, device=workload.device)
        self._bare_round = record(self._draft)
        self._last_round: dict[str, Callable[[], Any]] = {}
        self._kept: Any = None

    def _draft(self) -> None:
        for _ in range(ROUND_KERNELS):
            self._work.add_(1)

    # One point ---------------------------------------------------------------------------------------------------

    def measure(self, planners: Planners, row: Row) -> None:
        """Fills a row: host times, GPU times, rounds, whether the values agree, and the errors on the way."""
        options, batch, steps = self.options, row["batch"], row["steps"]
        per_request = 1 if self.mode == "decode" else options.draft_token_num
        row["rows"] = batch * per_request
        padding = min(options.padding, batch - 1)
        buffers = [self.workload.buffers(row["rows"], step) for step in range(steps)]
        dtype = getattr(torch, options.dtype)
        live = self.workload.live(batch, row["live"], room=16, dtype=dtype)
        theirs, ours = self._inputs(live, padding, per_request)
        calls = self._baselines(row, buffers, batch, theirs[0])
        plans = self._plans(row, planners, buffers, ours[0])
        if not options.no_check and "sglang_fused" in calls and "direct" in plans:
            check = partial(self._check, row, buffers, calls["sglang_fused"], theirs, plans, ours)
            attempt(row["errors"], "check", check)
        attempt(row["errors"], "host", partial(self._host, row, calls, theirs, plans, ours))
        attempt(row["errors"], "gpu", partial(self._gpu, row, calls, theirs, plans, ours))
        attempt(row["errors"], "round", partial(self._rounds, row, planners, calls, theirs, plans, ours))
        add_ratios(row)

    def _inputs(self, live: list[LiveSet], padding: int, per_request: int) -> tuple[list[Any], list[Any]]:
        """Positional arguments of SGLang's calls and of ours."""
        if self.mode == "draft_extend":
            generator = torch.Generator().manual_seed(5)
            lens = [
                torch.randint(0, per_request + 1, (s.numel(),), generator=generator, dtype=torch.int32) for s, _ in live
            ]
            lens = [values.to(self.workload.device) for values in lens]
            theirs = [(s, r, e, padding) for (s, r), e in zip(live, lens, strict=True)]
            return theirs, [(s, r, padding, e) for (s, r), e in zip(live, lens, strict=True)]
        return [(s, r, padding) for s, r in live], [(s, r, padding) if padding else (s, r) for s, r in live]

    def _baselines(self, row: Row, steps: list[Tensors], batch: int, first: LiveSet) -> dict[str, Callable[..., Any]]:
        """SGLang's launches, each called once, with the milliseconds that the first call took."""
        if self.sglang is None:
            return {}
        made = Baselines(self.sglang, steps, self.workload.table, batch)
        if self.mode == "decode":
            wanted = {"sglang_fused": made.fused, "sglang_per_step": made.per_step, "sglang_casts": made.casts}
        elif self.mode == "target_verify":
            wanted = {"sglang_fused": partial(made.verify, self.options.draft_token_num)}
        else:
            wanted = {"sglang_fused": made.extend}
        calls = {}
        for name, make in wanted.items():
            call = attempt(row["errors"], name, partial(self._first, row, name, make, first))
            if call is not None:
                calls[name] = call
        return calls

    def _plans(self, row: Row, planners: Planners, steps: list[Tensors], first: LiveSet) -> dict[str, Any]:
        plans: dict[str, Any] = {}
        more = {"draft_token_num": self.options.draft_token_num} if self.mode == "target_verify" else {}
        for name, backend, padding in (
            ("direct", "direct", "count"),
            ("triton", "triton", "count"),
            ("slot", "direct", "slot"),
        ):
            begin = time.perf_counter()
            make = partial(planners.plan, backend, steps, mode=self.mode, padding=padding, **more)
            plan = attempt(row["errors"], name, make)
            if plan is None:
                continue
            row.setdefault("plan_ms", {})[name] = round((time.perf_counter() - begin) * 1e3, 3)
            if plan.explain().data["fallbacks"]:
                row["errors"][f"{name} plan"] = "; ".join(plan.explain().data["fallbacks"])
                if name == "direct":
                    continue  # its time would be another launcher's
            if attempt(row["errors"], name, partial(self._first, row, name, partial(getattr, plan, "run"), first)):
                plans[name] = plan
        return plans

    def _first(self, row: Row, name: str, make: Callable[[], Callable[..., Any]], args: LiveSet) -> Callable[..., Any]:
        """Makes a call and calls it once, with the time that the first call took."""
        call = make()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call(*args)
        row.setdefault("first_call_ms", {})[name] = round((time.perf_counter() - begin) * 1e3, 3)
        torch.cuda.synchronize()
        return call

    # Values ------------------------------------------------------------------------------------------------------

    def _check(
        self,
        row: Row,
        steps: list[Tensors],
        reference: Callable[..., Any],
        theirs: Sequence[Any],
        plans: dict[str, Any],
        ours: Sequence[Any],
    ) -> None:
        """Compares every small buffer and the live page entries with SGLang's fused launch, bit by bit."""
        for buffers in steps:
            for tensor in buffers.values():
                tensor.fill_(POISON)
        reference(*theirs[0])
        wanted = [{name: tensor.clone() for name, tensor in buffers.items()} for buffers in steps]
        for buffers in steps:
            for tensor in buffers.values():
                tensor.fill_(POISON)
        plans["direct"].run(*ours[0])
        differ = []
        pages = torch.arange(self.workload.context // PAGE_SIZE, device=self.workload.device)
        for step, (got, want) in enumerate(zip(steps, wanted, strict=True)):
            used = (want["sequence_lengths"].long() + PAGE_SIZE - 1) // PAGE_SIZE
            for name in FIELDS:
                same = got[name] == want[name]
                if name == "page_table":
                    same |= pages[None, :] >= used[:, None]
                if not bool(same.all()):
                    differ.append(f"step {step} {name}")
        row["values_equal"] = not differ
        if differ:
            row["errors"]["values"] = ", ".join(differ)

    # Host, GPU, rounds -------------------------------------------------------------------------------------------

    def _host(
        self, row: Row, calls: dict[str, Any], theirs: Sequence[Any], plans: dict[str, Any], ours: Sequence[Any]
    ) -> None:
        steps = row["steps"]
        launches = {"sglang_per_step": steps, "sglang_casts": 4 * steps}
        if self.mode == "draft_extend":
            launches["sglang_fused"] = 2
        variants = [Variant(name, looped(call, theirs), launches.get(name, 1)) for name, call in calls.items()]
        if "direct" in plans:
            variants.append(Variant("direct", looped(plans["direct"].run, ours)))
            # Right after it, since their ratio is the finest of all.
            for name in ("bare", "triton_c_launcher", "torch_static"):
                made = attempt(row["errors"], name, partial(self._other, name, plans["direct"], ours[0]))
                if made is not None:
                    variants.append(Variant(name, made))
        if "triton" in plans:
            variants.append(Variant("triton", looped(plans["triton"].run, ours)))
        variants.append(Variant("empty", looped(self.empty, theirs)))
        host_times(variants, torch.cuda.synchronize, batches=self.options.batches)
        row["host_us"] = {v.name: {**summary(v.samples, 1e6), "calls": v.calls} for v in variants if v.samples}
        row["host_turns"] = {v.name: [round(1e6 * s, 4) for s in v.samples] for v in variants}
        for variant in variants:
            row["errors"].update(variant.errors)

    def _other(self, name: str, plan: Any, inputs: LiveSet) -> Callable[[int], float]:
        """Other launchers of the very kernel that ``direct`` starts."""
        if name == "bare":
            return bare(plan, inputs)
        from _launchers import c_launcher, torch_static

        kernel = kernel_of(plan, inputs)
        if name == "torch_static":
            return looped(torch_static(kernel.compiled, kernel.grid, kernel.words, kernel.types), [()])
        return looped(c_launcher(kernel.compiled, kernel.grid, kernel.arguments), [()])

    def _gpu(
        self, row: Row, calls: dict[str, Any], theirs: Sequence[Any], plans: dict[str, Any], ours: Sequence[Any]
    ) -> None:
        found: dict[str, Any] = {}
        from _launchers import copy_kernel

        wanted = [(name, call, theirs) for name, call in calls.items()]
        if self.mode == "decode" and row["live"] <= 8192:
            tables = [self.workload.buffers(row["rows"], step)["page_table"] for step in range(row["steps"])]
            for block in COPY_BLOCKS:
                copy = copy_kernel(self.workload.table, tables, row["live"], block)
                wanted.append((f"copy_{block}", copy, theirs))
        for name, call, inputs in wanted:
            timed = attempt(row["errors"], f"gpu_{name}", partial(gpu_time, call, inputs))
            if timed is not None:
                found[name] = timed
        found.update(self._short(row, plans, theirs, ours))
        copies = [found.pop(f"copy_{block}") for block in COPY_BLOCKS if f"copy_{block}" in found]
        if copies:
            found["copy"] = min(copies, key=lambda timed: timed["median"])
        row["gpu_us"] = found

    def _short(
        self, row: Row, plans: dict[str, Any], theirs: Sequence[Any], ours: Sequence[Any]
    ) -> dict[str, dict[str, float]]:
        """An empty kernel and our refresh, whose ratio is wanted to a hundredth: several graphs each, taking turns."""
        pair: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {"empty": (self.empty, theirs)}
        if "slot" in plans:
            pair["ours"] = (plans["slot"].run, ours)
        taken: dict[str, list[float]] = {}
        for _ in range(SHORT_GRAPHS):
            for name, (call, inputs) in pair.items():
                samples = attempt(row["errors"], f"gpu_{name}", partial(gpu_samples, call, inputs))
                taken.setdefault(name, []).extend(samples or [])
        return {name: summary(samples) for name, samples in taken.items() if samples}

    def _rounds(
        self,
        row: Row,
        planners: Planners,
        calls: dict[str, Any],
        theirs: Sequence[Any],
        plans: dict[str, Any],
        ours: Sequence[Any],
    ) -> None:
        """A refresh and a graph of small kernels: the host's time, and the time until the device is done."""
        plain = self._bare_round
        rounds: dict[str, Callable[[], Any]] = {"none": plain.replay}
        if "slot" in plans:
            run, inputs = plans["slot"].run, ours[0]

            def enqueue() -> None:
                run(*inputs)
                self._draft()

            recorded = attempt(row["errors"], "recorded", partial(record, enqueue))
            if recorded is not None:
                rounds["recorded"] = recorded.replay

        def before(call: Callable[..., Any], args: LiveSet) -> Callable[[], Any]:
            def play() -> None:
                call(*args)
                plain.replay()

            return play

        if "direct" in plans:
            rounds["direct"] = before(plans["direct"].run, ours[0])
        rounds.update({name: before(call, theirs[0]) for name, call in calls.items() if name != "sglang_per_step"})
        variants = [Variant(name, looped(play, [()]), ROUND_KERNELS + 8) for name, play in rounds.items()]
        runs = planners.launches()
        rounds_played = 20
        if "recorded" in rounds:
            for _ in range(rounds_played):
                rounds["recorded"]()
            outside = (planners.launches() - runs) / rounds_played
        host_times(variants, torch.cuda.synchronize, batches=self.options.batches, budget_s=0.001, drain_s=0.004)
        synced = [Variant(name, looped(_synced(play), [()]), ROUND_KERNELS + 8) for name, play in rounds.items()]
        host_times(synced, torch.cuda.synchronize, batches=self.options.batches, budget_s=0.001, drain_s=0.004)
        base = variants[0].samples
        found: dict[str, Any] = {}
        for variant, whole in zip(variants, synced, strict=True):
            if not variant.samples:
                continue
            found[variant.name] = {"host_us": summary(variant.samples, 1e6)}
            if whole.samples:
                found[variant.name]["round_us"] = summary(whole.samples, 1e6)
            added = [a - b for a, b in zip(variant.samples, base, strict=False)]
            found[variant.name]["added_us"] = summary(added, 1e6)
        if "recorded" in found:
            found["recorded"]["launches"] = outside
        row["round"] = found
        self._last_round, self._kept = rounds, (plans, calls)

    def profiled_launches(self) -> dict[str, Any]:
        """What the profiler sees started a round, for the last grid point. Last of all, since it slows what follows."""
        from _launchers import launches_of

        found: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for name, play in self._last_round.items():
            found[name] = attempt(errors, name, partial(launches_of, play))
        return {**found, **errors}


def _synced(play: Callable[[], Any]) -> Callable[[], None]:
    wait = torch.cuda.current_stream().synchronize

    def call() -> None:
        play()
        wait()

    return call
