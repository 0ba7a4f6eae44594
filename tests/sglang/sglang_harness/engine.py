"""A request table, and a runner of each phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from .batches import Batch, grown
from .graph import Graph
from .modules import patched
from .objects import model_runner, paged_table
from .runners import DraftRunner, ExtendRunner, VerifyRunner

BUCKETS = (1, 2, 4, 8)
"""Batch sizes that the tests capture."""


class Engine:
    """A request table and a runner of each phase.

    Args:
        module: SGLang's module with the classes; the one that the plugin hooks by default.
        steps: draft steps.
        max_batch: requests of the largest bucket.
        width: tokens of a slot of the request table.
        shared: whether the runners' buffers are in SGLang's process-wide pool of input buffers.
        index_sharing: whether the draft steps share the indices of draft extend.
        table: the request table, instead of a random one.
        phases: the phases that have a runner.
        context: the context limit, as wide as the table by default.
        graph: makes a graph.
    """

    def __init__(
        self,
        module: ModuleType | None = None,
        *,
        steps: int = 2,
        max_batch: int = 8,
        width: int = 1024,
        shared: bool = True,
        index_sharing: bool = False,
        table: torch.Tensor | None = None,
        phases: Sequence[str] = ("draft", "verify", "extend"),
        context: int = 0,
        graph: Callable[[], Any] = Graph,
    ) -> None:
        self.module = patched() if module is None else module
        self.table = paged_table(max_batch + 4, width) if table is None else table
        runner = self.model_runner = model_runner(self.table, context=context)
        self.draft = self.verify = self.extend = None
        options: dict[str, Any] = {
            "max_batch": max_batch,
            "shared": shared,
            "device": self.table.device,
            "graph": graph,
        }
        if "draft" in phases:
            container = self.module.QwenSparseMultiStepDraftBackend(runner, topk=1, speculative_num_steps=steps + 1)
            container.set_mtp_shared_sparse_indices(object() if index_sharing else None)
            self.draft = DraftRunner(container, **options)
        if "verify" in phases:
            self.verify = VerifyRunner(self.module.QwenSparseAttnBackend(runner), **options)
        if "extend" in phases:
            self.extend = ExtendRunner(self.module.QwenSparseAttnBackend(runner), **options)

    @property
    def runners(self) -> list[Any]:
        """The runners, in the order of a round."""
        return [runner for runner in (self.draft, self.verify, self.extend) if runner is not None]

    def capture(self, *sizes: int, **options: Any) -> None:
        """Captures graphs of these batch sizes in every phase."""
        for runner in self.runners:
            runner.capture(*sizes, **options)

    def round(self, batch: Batch) -> None:
        """One speculative round, in SGLang's order."""
        for runner in self.runners:
            runner.round(grown(batch) if runner.phase == "extend" else batch)
