"""What the sections share: the sizes, the request table, and engines with and without the plugin."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from qsa_group import sglang as plugin
from qsa_group.demo.rounds import Round, RoundSettings
from qsa_group.demo.simulate import Server
from qsa_group.demo.trace import generate, read_workload

from .batches import Batch
from .engine import Engine
from .graphs import CudaGraph, HostGraph
from .modules import hooked, unhooked
from .options import Options

__all__ = ["PHASES", "WAYS", "Bench"]

PHASES = ("draft", "verify", "extend")

WAYS = ("sglang", "recorded", "direct")
"""SGLang alone, the plugin with recorded refreshes, and the plugin with direct launches."""

_LIVE = 8192
"""Tokens of the longest request in the timed batches."""


class Bench:
    """The sizes, the table and the engines of a run.

    Args:
        options: the command line.

    Attributes:
        options: the command line.
        sizes: the sizes of the rounds. The lengths of the traces stay far below the context limit.
        table: the request table, [slots, width] int32.
        on_gpu: False in a dry run.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sizes = RoundSettings(
            steps=options.steps, max_batch=options.max_batch, context=options.context, slots=options.max_batch + 9
        )
        self.device = torch.device(options.device)
        self.on_gpu = self.device.type == "cuda"
        self.table = torch.zeros((self.sizes.slots, self.sizes.table_width), dtype=torch.int32, device=self.device)
        self._unhooked = unhooked()
        self._pages = self.table.view(self.sizes.slots, self.sizes.max_pages, self.sizes.page_size)
        self._within = torch.arange(self.sizes.page_size, dtype=torch.int32, device=self.device)

    def captured(
        self, way: str, buckets: Sequence[int] | None = None, *, index_sharing: bool = True, copied: bool = False
    ) -> Engine:
        """An engine whose graphs are captured.

        Args:
            way: one of `WAYS`.
            buckets: batch sizes; all of the run by default.
            index_sharing: whether the draft steps share the indices of draft extend.
            copied: whether the graphs copy out what they read.
        """
        if way != "sglang":
            settings = plugin.Settings(mode=way, backend="auto" if self.on_gpu else "host")
            if not plugin.install(settings):
                raise RuntimeError("the plugin does not install; see the warning above")
        engine = Engine(
            self._unhooked if way == "sglang" else hooked(),
            self.table,
            steps=self.sizes.steps,
            max_batch=self.sizes.max_batch,
            context=self.sizes.context,
            make_graph=CudaGraph if self.on_gpu else HostGraph,
            index_sharing=index_sharing,
            copied=copied,
        )
        engine.capture(buckets or self.sizes.buckets)
        self.wait()
        return engine

    def wait(self) -> None:
        """Waits for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def trace_rounds(self, path: Path | None, limit: int) -> Iterator[Round]:
        """The first rounds of a serving loop over a trace, again from the start when the trace is over.

        Args:
            path: CSV file of the trace; None generates one.
            limit: rounds.
        """
        seed = 0
        while limit > 0:
            requests = generate(500, seed=seed) if path is None else read_workload(path)
            for item in Server(self.sizes, speed=self.options.speed, seed=seed).serve(requests):
                yield item
                limit -= 1
                if limit == 0:
                    return
            seed += 1

    def write_pages(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Writes the pages that a round's requests were given: (slot, page number, page id)."""
        if entries:
            slots, numbers, ids = torch.tensor(entries, device=self.device).unbind(1)
            self._pages[slots, numbers] = ids.to(torch.int32)[:, None] * self.sizes.page_size + self._within

    def fill_table(self) -> None:
        """Random pages everywhere but in slot 0."""
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(1, 1 << 20, (self.sizes.slots, self.sizes.max_pages), generator=draw, dtype=torch.int32)
        self._pages.copy_((ids[:, :, None].to(self.device) * self.sizes.page_size) + self._within)
        self.table[0] = 0

    def batch(self, size: int) -> Batch:
        """A batch of requests of about 8K tokens."""
        draw = random.Random(0)
        most = min(_LIVE, self.sizes.context - 64)
        return Batch(
            [draw.randint(most // 2, most) for _ in range(size)],
            draw.sample(range(1, self.sizes.slots), size),
            [draw.randint(0, self.sizes.compress_ratio) for _ in range(size)],
        )
