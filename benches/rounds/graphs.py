"""CUDA graphs, and what stands in for them in a dry run without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

__all__ = ["CudaGraph", "Graph", "HostGraph", "Pairs"]

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Pairs (to, from) of tensors that are copied."""


class Graph(Protocol):
    """A graph of one bucket."""

    def capture(self) -> AbstractContextManager[None]:
        """Records what is launched meanwhile."""

    def copy_out(self, pairs: Pairs) -> None:
        """Records copies of what the graph reads. Inside a capture."""

    def replay(self) -> None:
        """Starts the graph."""


class CudaGraph:
    """A CUDA graph."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Records what is launched meanwhile."""
        # Not `torch.cuda.graph`, which collects garbage and empties the cache around each capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.graph.capture_begin()
            try:
                yield
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def copy_out(self, pairs: Pairs) -> None:
        """Records copies of what the graph reads."""
        for to, source in pairs:
            to.copy_(source)

    def replay(self) -> None:
        """Starts the graph."""
        self.graph.replay()


class HostGraph:
    """Stands in for a CUDA graph on the CPU. A replay copies out what the graph would read, and does nothing else.

    Nothing records on the CPU, so that the plugin refreshes before each replay in every mode.
    """

    def __init__(self) -> None:
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Records nothing."""
        yield

    def copy_out(self, pairs: Pairs) -> None:
        """Keeps pairs for the replays."""
        self.copies += pairs

    def replay(self) -> None:
        """Copies out."""
        for to, source in self.copies:
            to.copy_(source)
