"""SGLang's QSA backends on the CPU, with pools and runner objects as its own tests make them, and the calls that its
graph runners make.

Without a GPU there are no graphs, so a `Graph` here keeps what is run while it is captured and runs it again at a
replay: the plans with the very tensors of the capture, as the nodes of a graph do. Everything else is SGLang's.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from qsa_group.sglang import refresh
from qsa_group.sglang.bridge import ALL_BUFFERS, buffer

MODULE = "sglang.srt.layers.attention.qwen_sparse_attn_backend"
RATIO, PAGE = 4, 64


class _TorchWithoutPinnedMemory(ModuleType):
    """`torch` for a module that pins memory, which takes a GPU."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, **options)


def prepare(module: ModuleType) -> ModuleType:
    """Makes a module with the backends usable without a server around it and without a GPU."""
    if not torch.cuda.is_available():
        module.torch = _TorchWithoutPinnedMemory()  # type: ignore[attr-defined]
    module.get_spec = lambda: SimpleNamespace(speculative_num_draft_tokens=4)  # type: ignore[attr-defined]
    module.maybe_create_verify_mask = lambda **_: None  # type: ignore[attr-defined]
    return module


def patched() -> ModuleType:
    """SGLang's module, which the plugin hooks."""
    return prepare(importlib.import_module(MODULE))


def copy_of_module(name: str = "unpatched_qsa_backend") -> ModuleType:
    """The same source once more under another name: classes of its own, which nothing has hooked."""
    found = importlib.import_module(MODULE)
    spec = importlib.util.spec_from_file_location(name, found.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return prepare(module)


def qsa_pool(ratio: int = RATIO, page: int = PAGE) -> Any:
    """A QSA pool that holds sizes alone."""
    from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

    pool = object.__new__(QSATokenToKVPool)
    pool.qsa_compress_ratio = ratio
    pool.qsa_compressed_page_size = page // ratio
    pool.qsa_block_topk = 512
    pool.full_kv_pool = None
    return pool


def model_runner(table: torch.Tensor, *, ratio: int = RATIO, page: int = PAGE, context: int = 0) -> SimpleNamespace:
    """A model runner as far as the backends look at it."""
    return SimpleNamespace(
        device=table.device,
        token_to_kv_pool=qsa_pool(ratio, page),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        is_draft_worker=True,
        model_config=SimpleNamespace(
            context_len=context or table.shape[1], hf_config=SimpleNamespace(indexer_compress_ratio=ratio)
        ),
        kv_index_translator=SimpleNamespace(is_translating=False),
    )


def paged_table(slots: int, width: int, *, page: int = PAGE, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """A request table of random pages. Slot 0 is reserved and zero."""
    draw = torch.Generator().manual_seed(seed)
    pages = torch.randint(1, 1 << 20, (slots, width // page), generator=draw, dtype=torch.int32)
    table = (pages[:, :, None] * page + torch.arange(page, dtype=torch.int32)).reshape(slots, width)
    table[0] = 0
    return table.to(device)


@dataclass
class Graph:
    """Stands in for a CUDA graph: a replay runs again what was run in the capture, with the same tensors."""

    nodes: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    reads: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @contextmanager
    def capture(self) -> Iterator[None]:
        is_capturing, run = refresh.capturing, refresh.Bucket._run

        def keep(bucket: Any, *inputs: Any) -> None:
            self.nodes += [(plan, inputs) for plan, _ in bucket.plans]

        refresh.capturing = lambda tensor: True
        refresh.Bucket._run = keep  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            refresh.capturing = is_capturing
            refresh.Bucket._run = run  # type: ignore[method-assign]

    def copy_out(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """In a capture: what the graph reads, copied to where it can be looked at afterwards."""
        self.reads += pairs

    def replay(self) -> None:
        for plan, inputs in self.nodes:
            plan.run(*inputs)
        for to, source in self.reads:
            to.copy_(source)


@dataclass(frozen=True)
class Batch:
    """The live batch of a round."""

    seq_lens: Sequence[int]
    slots: Sequence[int]
    extend: Sequence[int] = ()

    def tensors(self, device: Any = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def of(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        return of(self.seq_lens, torch.int64), of(self.slots, torch.int64), of(self.extend, torch.int32)


class Runner:
    """Buffers and calls of one of SGLang's graph runners."""

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
        """Pairs (to, from) that the graph of a bucket copies, as a model would read them."""
        return []

    def round(self, batch: Batch, size: int | None = None) -> int:
        """Refreshes and replays for one batch; returns the bucket."""
        raw = len(batch.seq_lens)
        size = size or min(found for found in self.graphs if found >= raw)
        self.backend.init_forward_metadata_out_graph(self.replay_batch(batch, size))
        self.graphs[size].replay()
        return size

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
        children = self.backend.attn_backends if self.phase == "draft" else [self.backend]
        return [child._cuda_graph_metadata[(self.mode, size)] for child in children]

    @property
    def mode(self) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        names = {"draft": "DECODE", "verify": "TARGET_VERIFY", "extend": "DRAFT_EXTEND_V2"}
        return ForwardMode[names[self.phase]]


class DraftRunner(Runner):
    """As `EAGLEDraftCudaGraphRunner`: a batch that fills its bucket is handed over as it is."""

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
    """As `DecodeCudaGraphRunner` for target verify: always slices of the buffers."""

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
    """As `EAGLEDraftExtendCudaGraphRunner`: always its whole buffers, and no count of padding."""

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


RUNNERS: dict[str, type[Runner]] = {"draft": DraftRunner, "verify": VerifyRunner, "extend": ExtendRunner}


class Engine:
    """A request table and a runner of each phase over one module's classes."""

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
        return [runner for runner in (self.draft, self.verify, self.extend) if runner is not None]

    def capture(self, *sizes: int, **options: Any) -> None:
        for runner in self.runners:
            runner.capture(*sizes, **options)

    def round(self, batch: Batch) -> None:
        """One speculative round, in SGLang's order."""
        for runner in self.runners:
            runner.round(grown(batch) if runner.phase == "extend" else batch)


def grown(batch: Batch) -> Batch:
    """The batch of draft extend: its lengths include the accepted rows."""
    lengths = [length + extend for length, extend in zip(batch.seq_lens, batch.extend, strict=True)]
    return Batch(lengths, batch.slots, batch.extend)


def random_batch(draw: random.Random, size: int, *, slots: int, width: int, reach: int = 8, most: int = 4) -> Batch:
    """A batch of requests with slots of their own, and lengths that leave room for the round."""
    return Batch(
        [draw.randint(1, width - reach - most) for _ in range(size)],
        draw.sample(range(1, slots), size),
        [draw.randint(0, most) for _ in range(size)],
    )


def poison(runner: Any, size: int) -> None:
    """Fills a bucket's buffers with a valid page id that no row has, so that a refresh left out is seen."""
    for metadata in runner.metadata(size):
        for name in ALL_BUFFERS:
            buffer(metadata, name).fill_(77)


def differences(
    ours: Any, theirs: Any, size: int, *, names: Sequence[str] = ALL_BUFFERS, page: int = PAGE, inert_slots: bool = True
) -> list[str]:
    """Entries of a bucket's buffers that are not equal, in words.

    Page table entries past a row's length are left out, since no reader reads them. With `inert_slots=False` so are the
    slots of rows behind the batch, to which SGLang's host staging gives the slot of the first request.
    """
    found = []
    for step, (mine, other) in enumerate(zip(ours.metadata(size), theirs.metadata(size), strict=True)):
        lengths = buffer(other, "sequence_lengths")
        behind = (lengths == 1) & (buffer(other, "prefix_lengths") == 0) & (buffer(mine, "row_req_pool_indices") == 0)
        for name in names:
            a, b = buffer(mine, name), buffer(other, name)
            wrong = a != b
            if name == "page_table":
                wrong &= torch.arange(a.shape[1]) * page < lengths[:, None]
            if not inert_slots and name in (
                "row_req_pool_indices",
                "pending_ring_slots",
                "ring_group_locs",
                "page_table",
            ):
                wrong &= ~(behind if a.ndim == 1 else behind[:, None])
            if bool(wrong.any()):
                at = tuple(int(i) for i in wrong.nonzero()[0])
                found.append(f"step {step}: {name}{list(at)} is {int(a[at])}, SGLang has {int(b[at])}")
    return found


def assert_same_round(
    ours: Engine,
    theirs: Engine,
    batch: Batch,
    *,
    names: Callable[[str], Sequence[str]] = lambda phase: ALL_BUFFERS,
    poisoned: bool = True,
) -> None:
    """Runs a round on both engines and compares every buffer, which were filled with other values before."""
    for mine, other in zip(ours.runners, theirs.runners, strict=True):
        live = grown(batch) if mine.phase == "extend" else batch
        size = min(found for found in mine.graphs if found >= len(batch.seq_lens))
        if poisoned:
            poison(mine, size)
        mine.round(live)
        other.round(live)
        wrong = differences(mine, other, size, names=names(mine.phase), inert_slots=mine.phase == "draft")
        assert not wrong, f"{mine.phase}, {len(batch.seq_lens)} of {size}: {wrong}"
        children = mine.backend.attn_backends if mine.phase == "draft" else [mine.backend]
        assert [child.forward_metadata for child in children] == mine.metadata(size)
