"""A stand-in for CUDA graphs, which take a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from qsa_group.sglang import bucket as bucket_module


@dataclass
class Graph:
    """Keeps what is run while it is captured, and runs it again at a replay, with the tensors of the capture.

    Attributes:
        nodes: each plan that was run, with its inputs.
        reads: pairs (to, from) that are copied at the end of a replay.
    """

    nodes: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    reads: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """While this lasts, buckets are recorded and not run."""
        is_capturing, run = bucket_module.capturing, bucket_module.Bucket.run

        def keep(bucket: Any, *inputs: Any) -> None:
            self.nodes += [(plan, inputs) for plan in bucket.plans]

        bucket_module.capturing = lambda tensor: True
        bucket_module.Bucket.run = keep  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            bucket_module.capturing = is_capturing
            bucket_module.Bucket.run = run  # type: ignore[method-assign]

    def copy_out(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """In a capture: what the graph reads, copied to where it can be looked at after a replay."""
        self.reads += pairs

    def replay(self) -> None:
        for plan, inputs in self.nodes:
            plan.run(*inputs)
        for to, source in self.reads:
            to.copy_(source)
