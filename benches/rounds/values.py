"""Section `values`: every buffer that a graph reads, with the plugin and without, after each round of each trace."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from qsa_group import sglang as plugin
from qsa_group.demo.rounds import Round

from .batches import Batch
from .bench import Bench
from .engine import Engine
from .runners import Runner

__all__ = ["values"]

_POISON = -7
"""Fills our results before a round, so that a missing refresh is seen."""


def values(bench: Bench) -> dict[str, Any]:
    """Compares all rounds of all traces, by way and index sharing."""
    results: dict[str, Any] = {}
    traces: list[Path | None] = [*bench.options.workloads] or [None]
    for index_sharing in (True, False):
        for way in ("recorded", "direct"):
            ours = bench.captured(way, index_sharing=index_sharing, copied=True)
            theirs = bench.captured("sglang", index_sharing=index_sharing, copied=True)
            for path in traces:
                count = bench.options.rounds if way == "recorded" else max(bench.options.rounds // 10, 1)
                name = f"{'generated' if path is None else path.stem}, {way}, index sharing {index_sharing}"
                results[name] = _compare_rounds(bench, ours, theirs, bench.trace_rounds(path, count))
                print(f"  {name}: {results[name]}", flush=True)
            # The next engines are made after these are gone.
            del ours, theirs
    return results


def _compare_rounds(bench: Bench, ours: Engine, theirs: Engine, rounds: Iterable[Round]) -> dict[str, Any]:
    before = plugin.stats()
    count, differing, padded, first = 0, 0, 0, ""
    sizes: set[int] = set()
    for item in rounds:
        bench.write_pages(item.pages)
        # SGLang refuses verify windows of more tokens than the compress ratio. More than two steps would need them.
        extend_lens = [min(accepted, bench.sizes.compress_ratio) for accepted in item.extend_lens]
        batch = Batch(item.seq_lens, item.slots, extend_lens)
        for mine, other in zip(ours.runners, theirs.runners, strict=True):
            for result in mine.results:
                for tensor in result.values():
                    tensor.fill_(_POISON)
            size = mine.round(mine.live(batch))
            other.round(other.live(batch))
            sizes.add(size)
            padded += size != len(item.seq_lens)
            difference = _difference(bench, mine, other, size)
            if difference:
                differing += 1
                first = first or f"round {count}, {mine.phase}, {len(item.seq_lens)} of {size}: {difference}"
        count += 1
    after = plugin.stats()
    return {
        "rounds": count,
        "refreshes_differing": differing,
        "first_difference": first,
        "padded_refreshes": padded,
        "buckets": sorted(sizes),
        "recorded": after["recorded"] - before["recorded"],
        "launched": after["launched"] - before["launched"],
        "left_to_sglang": after["sglang"] - before["sglang"],
    }


def _difference(bench: Bench, mine: Runner, other: Runner, size: int) -> str:
    """The first entry that a graph read and that is not SGLang's; empty where there is none.

    Entries of the page table past a row's length are left out: no reader reads them, and we do not write them. Off the
    GPU the slots of rows behind the batch are left out as well. SGLang's host staging gives these rows the first
    request's slot.
    """
    checks = []
    for step, (ours, theirs) in enumerate(zip(mine.results, other.results, strict=True)):
        rows = mine.metadata(size)[0].sequence_lengths.shape[0]
        lengths = theirs["sequence_lengths"][:rows]
        behind = (lengths == 1) & (ours["row_req_pool_indices"][:rows] == 0)
        for name, tensor in ours.items():
            a, b = tensor[:rows], theirs[name][:rows]
            wrong = a != b
            if name == "page_table":
                columns = torch.arange(a.shape[1], device=a.device) * bench.sizes.page_size
                wrong &= columns < lengths[:, None]
            if not bench.on_gpu:
                wrong &= ~(behind if a.ndim == 1 else behind[:, None])
            checks.append((step, name, a, b, wrong, wrong.any()))
    # One wait for all buffers.
    if not bool(torch.stack([check[-1] for check in checks]).any()):
        return ""
    step, name, a, b, wrong, _ = next(check for check in checks if bool(check[-1]))
    index = tuple(int(i) for i in wrong.nonzero()[0])
    return f"step {step}: {name}{list(index)} is {int(a[index])}, SGLang has {int(b[index])}"
