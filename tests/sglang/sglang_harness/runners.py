"""The buffers and calls of SGLang's graph runners. `real_runners` makes the runners themselves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from qsa_group.sglang.state import ATTRIBUTE

from .batches import Batch
from .graph import Graph


class Runner:
    """Buffers and calls of one of SGLang's graph runners.

    Args:
        backend: the container of the draft steps, or a backend.
        max_batch: requests of the largest bucket.
        shared: whether the buffers are in SGLang's process-wide pool of input buffers.
        device: of the buffers.
        graph: makes a graph.
    """

    phase = ""
    width = 1

    def __init__(
        self,
        backend: Any,
        *,
        max_batch: int,
        shared: bool = True,
        device: Any = "cpu",
        graph: Callable[[], Any] = Graph,
    ) -> None:
        self.backend, self.max_batch, self.device, self.graph = backend, max_batch, device, graph
        backend.init_cuda_graph_state(max_batch, max_batch * self.width)
        self.seq_lens = torch.ones(max_batch, dtype=torch.int64, device=device)
        self.slots = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self.extend_lens = torch.full((max_batch,), self.width, dtype=torch.int32, device=device)
        if shared:
            self._share()
        self.graphs: dict[int, Any] = {}
        self.capture_batches: dict[int, Any] = {}

    def _share(self) -> None:
        from sglang.srt.model_executor.input_buffers import share_input_buffer

        self.seq_lens = share_input_buffer("seq_lens", self.seq_lens)
        self.slots = share_input_buffer("req_pool_indices", self.slots)
        self.extend_lens = share_input_buffer("extend_seq_lens", self.extend_lens)

    def capture(self, *sizes: int, record: bool = True) -> None:
        """Captures graphs, the largest first. `record=False` leaves out the call inside the graph."""
        self.seq_lens.fill_(1)
        self.slots.zero_()
        for size in sorted(sizes, reverse=True):
            batch = self.capture_batches[size] = self.capture_batch(size)
            self.backend.init_forward_metadata_out_graph(batch, in_capture=True)
            for _ in range(2):
                self.backend.init_forward_metadata_in_graph(batch)
            graph = self.graphs[size] = self.graph()
            if record:
                with graph.capture():
                    self.backend.init_forward_metadata_in_graph(batch)
                    graph.copy_out(self.copies(size))

    def copies(self, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs (to, from) that the graph of a bucket copies, which stand for the model's reads."""
        return []

    def round(self, batch: Batch, size: int | None = None) -> int:
        """Refreshes and replays for one batch; returns the bucket."""
        raw = len(batch.seq_lens)
        size = size or self.bucket_of(raw)
        self.backend.init_forward_metadata_out_graph(self.replay_batch(batch, size))
        self.graphs[size].replay()
        return size

    def bucket_of(self, raw: int) -> int:
        """The smallest captured bucket that holds so many requests."""
        return min(size for size in self.graphs if size >= raw)

    def fill(self, batch: Batch, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copies the live batch into the buffers as the runners do, padding included."""
        lengths, slots, extend = batch.tensors(self.device)
        raw = len(lengths)
        if raw != size:
            self.seq_lens.fill_(1)
            self.slots.zero_()
            self.extend_lens.fill_(self.width)
        self.seq_lens[:raw].copy_(lengths)
        self.slots[:raw].copy_(slots)
        if len(extend):
            self.extend_lens[:raw].copy_(extend)
        return lengths, slots, extend

    def capture_batch(self, size: int) -> Any:
        raise NotImplementedError

    def replay_batch(self, batch: Batch, size: int) -> Any:
        raise NotImplementedError

    def metadata(self, size: int) -> list[Any]:
        """SGLang's metadata of a bucket, one a step."""
        return [backend._cuda_graph_metadata[(self.mode, size)] for backend in self.step_backends]

    @property
    def step_backends(self) -> list[Any]:
        """The backend of each step."""
        return list(self.backend.attn_backends) if self.phase == "draft" else [self.backend]

    @property
    def state(self) -> Any:
        """What the plugin keeps for the backend."""
        return getattr(self.backend, ATTRIBUTE)

    def bucket(self, size: int) -> Any:
        """The plugin's bucket of a size."""
        return self.state.buckets[self.phase][size]

    @property
    def mode(self) -> Any:
        """SGLang's forward mode of the phase."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        names = {"draft": "DECODE", "verify": "TARGET_VERIFY", "extend": "DRAFT_EXTEND_V2"}
        return ForwardMode[names[self.phase]]


class DraftRunner(Runner):
    """Calls as `EAGLEDraftCudaGraphRunner` does: a batch that fills its bucket is handed over as it is."""

    phase = "draft"

    def capture_batch(self, size: int) -> Any:
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
        lengths, slots, _ = self.fill(batch, size)
        raw = len(lengths)
        padded = raw != size
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            req_pool_indices=self.slots[:size] if padded else slots,
            seq_lens=self.seq_lens[:size] if padded else lengths,
            seq_lens_cpu=None,
            out_cache_loc=None,
            spec_info=SimpleNamespace(topk=1),
            num_padding=size - raw,
        )


class VerifyRunner(Runner):
    """Calls as `DecodeCudaGraphRunner` does for target verify, always with slices of the buffers."""

    phase = "verify"

    def __init__(self, backend: Any, *, draft_tokens: int = 4, **options: Any) -> None:
        self.width = draft_tokens
        super().__init__(backend, **options)

    def capture_batch(self, size: int) -> Any:
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            input_ids=torch.zeros(size * self.width, dtype=torch.int64),
            req_pool_indices=self.slots[:size],
            seq_lens=self.seq_lens[:size],
            spec_info=self.spec_info(),
        )

    def spec_info(self) -> Any:
        return SimpleNamespace(topk=1, draft_token_num=self.width)

    def replay_batch(self, batch: Batch, size: int) -> Any:
        self.fill(batch, size)
        return SimpleNamespace(
            forward_mode=self.mode,
            batch_size=size,
            req_pool_indices=self.slots[:size],
            seq_lens=self.seq_lens[:size],
            seq_lens_cpu=None,
            spec_info=self.spec_info(),
            num_padding=size - len(batch.seq_lens),
        )


class ExtendRunner(Runner):
    """Calls as `EAGLEDraftExtendCudaGraphRunner` does, always with its whole buffers, and no count of padding."""

    phase = "extend"

    def __init__(self, backend: Any, *, draft_tokens: int = 4, **options: Any) -> None:
        self.width = draft_tokens
        super().__init__(backend, **options)

    def capture_batch(self, size: int) -> Any:
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
        self.fill(batch, size)
        extend = [*batch.extend, *[self.width] * (size - len(batch.extend))]
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
