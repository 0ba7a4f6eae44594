"""Buffers and calls of SGLang's graph runners, around SGLang's own backends.

The tests in `tests/sglang` run the real runners. Here the calls are written out once more, as few as a bench needs, so
that the bench depends on no test and measures nothing but the refresh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lib.sglang_metadata import buffer

from .batches import Batch, grown
from .graphs import Graph

__all__ = ["DraftRunner", "ExtendRunner", "Runner", "VerifyRunner"]

Results = list[dict[str, torch.Tensor]]
"""What a runner's graphs have read: buffers by name, one mapping a step, shared by all buckets."""


class Runner(ABC):
    """Buffers and calls of one of SGLang's graph runners.

    Args:
        backend: the container of the draft steps, or a backend.
        max_batch: requests of the largest bucket.
        width: rows of a request.
        device: device of the buffers.
        make_graph: makes a graph.
        copied: names of the buffers that the graphs copy out, which stand for the model's reads.

    Attributes:
        graphs: the captured graph of each bucket.
        results: what the graphs have copied out.
    """

    phase: ClassVar[str]
    mode_name: ClassVar[str]
    """Name in SGLang's `ForwardMode`."""

    def __init__(
        self,
        backend: Any,
        *,
        max_batch: int,
        width: int,
        device: torch.device,
        make_graph: Callable[[], Graph],
        copied: Sequence[str] = (),
    ) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.model_executor.input_buffers import share_input_buffer

        self.backend, self.width, self.device = backend, width, device
        self.mode = ForwardMode[self.mode_name]
        self.make_graph = make_graph
        self.copied = copied
        backend.init_cuda_graph_state(max_batch, max_batch * width)
        self.seq_lens = share_input_buffer("seq_lens", torch.ones(max_batch, dtype=torch.int64, device=device))
        self.slots = share_input_buffer("req_pool_indices", torch.zeros(max_batch, dtype=torch.int64, device=device))
        self.extend_lens = share_input_buffer(
            "extend_seq_lens", torch.full((max_batch,), width, dtype=torch.int32, device=device)
        )
        self.graphs: dict[int, Graph] = {}
        self.results: Results = []
        self._capture_batches: list[Any] = []  # As long as the graphs that read them.

    def capture(self, sizes: Sequence[int]) -> None:
        """Captures a graph of each size, the largest first."""
        self.seq_lens.fill_(1)
        self.slots.zero_()
        for size in sorted(sizes, reverse=True):
            batch = self.capture_batch(size)
            self._capture_batches.append(batch)
            self.backend.init_forward_metadata_out_graph(batch, in_capture=True)
            for _ in range(2):
                self.backend.init_forward_metadata_in_graph(batch)
            graph = self.graphs[size] = self.make_graph()
            with graph.capture():
                self.backend.init_forward_metadata_in_graph(batch)
                graph.copy_out(self._copies(size))

    def live(self, batch: Batch) -> Batch:
        """The batch of a round as this phase gets it."""
        return batch

    def round(self, batch: Batch) -> int:
        """Refreshes and replays for one batch; returns the bucket."""
        size = min(size for size in self.graphs if size >= len(batch.seq_lens))
        self.backend.init_forward_metadata_out_graph(self.replay_batch(batch, size))
        self.graphs[size].replay()
        return size

    def metadata(self, size: int) -> list[Any]:
        """SGLang's metadata of a bucket, one a step."""
        return [backend._cuda_graph_metadata[self.mode, size] for backend in self.step_backends()]

    def step_backends(self) -> list[Any]:
        """The backend of each step."""
        return [self.backend]

    @abstractmethod
    def capture_batch(self, size: int) -> Any:
        """The batch that a bucket is captured with."""

    @abstractmethod
    def replay_batch(self, batch: Batch, size: int) -> Any:
        """A live batch in its bucket."""

    def fill(self, batch: Batch, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies a live batch into the buffers, padding included; returns its own lengths and slots."""
        lengths, slots, extend = batch.tensors(self.device)
        count = len(lengths)
        if count != size:
            self.seq_lens.fill_(1)
            self.slots.zero_()
            self.extend_lens.fill_(self.width)
        self.seq_lens[:count].copy_(lengths)
        self.slots[:count].copy_(slots)
        if len(extend):
            self.extend_lens[:count].copy_(extend)
        return lengths, slots

    def _copies(self, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = []
        for step, metadata in enumerate(self.metadata(size)):
            sources = {name: buffer(metadata, name) for name in self.copied}
            if len(self.results) <= step:
                # The largest bucket comes first, so that the others fit into its results.
                self.results.append({name: torch.zeros_like(source) for name, source in sources.items()})
            pairs += [(self.results[step][name][: len(source)], source) for name, source in sources.items()]
        return pairs


class DraftRunner(Runner):
    """Calls as `EAGLEDraftCudaGraphRunner` does: a batch that fills its bucket is handed over as it is."""

    phase = "draft"
    mode_name = "DECODE"

    def step_backends(self) -> list[Any]:
        """See `Runner.step_backends`."""
        return list(self.backend.attn_backends)

    def capture_batch(self, size: int) -> Any:
        """See `Runner.capture_batch`."""
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            input_ids=None,
            req_pool_indices=self.slots[:size],
            seq_lens=self.seq_lens[:size],
            seq_lens_cpu=None,
            out_cache_loc=None,
            spec_info=SimpleNamespace(topk=1),
        )

    def replay_batch(self, batch: Batch, size: int) -> Any:
        """See `Runner.replay_batch`."""
        lengths, slots = self.fill(batch, size)
        padding = size - len(lengths)
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            req_pool_indices=self.slots[:size] if padding else slots,
            seq_lens=self.seq_lens[:size] if padding else lengths,
            seq_lens_cpu=None,
            out_cache_loc=None,
            spec_info=SimpleNamespace(topk=1),
            num_padding=padding,
        )


class VerifyRunner(Runner):
    """Calls as `DecodeCudaGraphRunner` does for target verify, always with slices of the buffers."""

    phase = "verify"
    mode_name = "TARGET_VERIFY"

    def capture_batch(self, size: int) -> Any:
        """See `Runner.capture_batch`."""
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            input_ids=torch.zeros(size * self.width, dtype=torch.int64),
            req_pool_indices=self.slots[:size],
            seq_lens=self.seq_lens[:size],
            spec_info=SimpleNamespace(topk=1, draft_token_num=self.width),
        )

    def replay_batch(self, batch: Batch, size: int) -> Any:
        """See `Runner.replay_batch`."""
        self.fill(batch, size)
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            req_pool_indices=self.slots[:size],
            seq_lens=self.seq_lens[:size],
            seq_lens_cpu=None,
            spec_info=SimpleNamespace(topk=1, draft_token_num=self.width),
            num_padding=size - len(batch.seq_lens),
        )


class ExtendRunner(Runner):
    """Calls as `EAGLEDraftExtendCudaGraphRunner` does, always with its whole buffers, and no count of padding."""

    phase = "extend"
    mode_name = "DRAFT_EXTEND_V2"

    def live(self, batch: Batch) -> Batch:
        """See `Runner.live`. Lengths include the accepted rows."""
        return grown(batch)

    def capture_batch(self, size: int) -> Any:
        """See `Runner.capture_batch`."""
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            input_ids=torch.zeros(size * self.width, dtype=torch.int64),
            req_pool_indices=self.slots[:size],
            seq_lens=self.seq_lens[:size],
            extend_seq_lens=self.extend_lens[:size],
            spec_info=SimpleNamespace(topk=1),
        )

    def replay_batch(self, batch: Batch, size: int) -> Any:
        """See `Runner.replay_batch`."""
        self.fill(batch, size)
        extend = [*batch.extend_lens, *[self.width] * (size - len(batch.extend_lens))]
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            input_ids=None,
            req_pool_indices=self.slots,
            seq_lens=self.seq_lens,
            seq_lens_cpu=None,
            spec_info=SimpleNamespace(
                topk=1, extend_seq_lens_cpu=extend, extend_seq_lens_tensor=self.extend_lens[:size]
            ),
        )
