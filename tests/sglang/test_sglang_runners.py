"""SGLang's own graph runners, with a stand-in for the graphs and for the model around them."""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_harness import (
    Batch,
    Graph,
    copy_of_module,
    model_runner,
    paged_table,
    patched,
    random_batch,
)

from qsa_group.sglang.bridge import buffer
from qsa_group.sglang.refresh import ATTRIBUTE

BUCKETS = [1, 2, 4, 8]
WIDTH, SLOTS, TOKENS = 1024, 12, 4


class _Spec(SimpleNamespace):
    """Speculation settings: whatever is not set is off."""

    def __getattr__(self, name: str) -> Any:
        return False


class _Algorithm:
    def __getattr__(self, name: str) -> Any:
        return lambda: name == "is_eagle"


class _GraphBackend:
    """Captures and replays as SGLang's backend for whole graphs does: two warm-ups, then the capture."""

    def __init__(self) -> None:
        self.graphs: dict[Any, Graph] = {}
        self.outputs: dict[Any, Any] = {}

    def capture_one(
        self, key: Any, forward: Callable[[], Any], capture_inputs: Any = None, post_warmup_hook: Any = None
    ) -> None:
        for _ in range(2):
            forward()
        graph = self.graphs[key] = Graph()
        with graph.capture():
            self.outputs[key] = forward()

    def replay(self, key: Any, forward_batch: Any, **_: Any) -> Any:
        self.graphs[key].replay()
        return self.outputs[key]


def runner_module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module(f"sglang.srt.speculative.{name}")
    monkeypatch.setattr(module, "get_spec", lambda: _Spec(speculative_num_draft_tokens=TOKENS))
    monkeypatch.setattr(module, "maybe_flashinfer_autotune_speculative_draft", lambda *_, **__: None)
    monkeypatch.setattr(module, "device_timer_ctx", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "DeepEPCudaGraphRunnerAdapter", lambda: _Quiet())
    monkeypatch.setattr(
        module,
        "DpPaddingMode",
        SimpleNamespace(get_default_mode_in_cuda_graph=lambda *_: SimpleNamespace(is_max_len=bool)),
    )
    for setter in ("set_dp_buffer_len", "set_is_extend_in_batch"):
        monkeypatch.setattr(module, setter, lambda *_: None)
    return module


class _Quiet:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def server(table: torch.Tensor) -> Any:
    found = model_runner(table)
    found.spec_algorithm = _Algorithm()
    found.device_timer = found.canary_manager = None
    found.model_config.model_is_mrope, found.model_config.vocab_size = False, 32
    found.kv_index_translator = SimpleNamespace(is_translating=False, bind_runner_slots=lambda batch: None)
    return found


def bare(cls: type[Any], backend: Any, table: torch.Tensor, **values: Any) -> Any:
    """A runner without its constructor, which builds the model's side too."""
    made = object.__new__(cls)
    made.__dict__.update(
        model_runner=server(table),
        device="cpu",
        require_gathered_buffer=False,
        require_mlp_tp_gather=False,
        require_mlp_sync=False,
        require_attn_tp_gather=False,
        disable_padding=False,
        attn_dp_size=1,
        capture_bs=BUCKETS,
        max_bs=max(BUCKETS),
        seq_len_fill_value=backend_fill(backend),
        deepep_adapter=_Quiet(),
        backend=_GraphBackend(),
        model_context=contextlib.nullcontext,
        **values,
    )
    return made


def backend_fill(backend: Any) -> int:
    children = getattr(backend, "attn_backends", None) or [backend]
    return int(children[0].get_cuda_graph_seq_len_fill_value())


def draft_runner(module: Any, runners: Any, table: torch.Tensor, steps: int) -> Any:
    backend = module.QwenSparseMultiStepDraftBackend(server(table), topk=1, speculative_num_steps=steps + 1)
    size = max(BUCKETS)
    backend.init_cuda_graph_state(size, size)

    def whole(*shape: int, dtype: torch.dtype = torch.int64, fill: int = 0) -> torch.Tensor:
        return torch.full(shape, fill, dtype=dtype)

    worker = SimpleNamespace(speculative_num_steps=steps + 1)
    worker.draft_forward = lambda batch: (
        batch.positions.add_(steps),
        torch.zeros(size, 1),
        torch.zeros(size, steps),
        None,
    )
    made = bare(
        runners.EAGLEDraftCudaGraphRunner,
        backend,
        table,
        draft_attn_backend=backend,
        attn_backend=backend,
        eagle_worker=worker,
        speculative_num_steps=steps + 1,
        topk=1,
        captured_req_width=1,
        extend_seq_lens_cpu=[1] * size,
        temperatures=torch.ones(size, 1),
        top_ks=whole(size, dtype=torch.int32),
    )
    made.buffers = runners.EagleDraftInputBuffers(
        input_ids=whole(size),
        req_pool_indices=whole(size),
        out_cache_loc=whole(size * (steps + 1)),
        positions=whole(size),
        mrope_positions=whole(3, size),
        rids_int=None,
        bootstrap_room_ids_int=None,
        seq_lens=whole(size, fill=made.seq_len_fill_value),
        seq_lens_cpu=whole(size, fill=made.seq_len_fill_value),
        extend_seq_lens=whole(size, dtype=torch.int32, fill=1),
        topk_p=torch.zeros(size, 1),
        topk_index=whole(size, 1),
        draft_probs=None,
        sampling_seed=None,
        hidden_states=None,
        global_num_tokens_gpu=None,
        global_num_tokens_for_logprob_gpu=None,
    )
    made.buffers.share_buffers()
    made.buffers.reset_index_buffers()
    made.buffers.seq_lens.fill_(made.seq_len_fill_value)
    for bucket in reversed(BUCKETS):
        made.capture_one_shape(bucket, lambda: None)
    return made


def draft_batch(batch: Batch, steps: int) -> Any:
    lengths, slots, _ = batch.tensors()
    size = len(lengths)

    class Live:
        """As much of a batch as the runner looks at."""

    live = Live()
    live.__dict__.update(
        batch_size=size,
        forward_mode=None,
        seq_lens=lengths,
        req_pool_indices=slots,
        seq_lens_cpu=None,
        seq_lens_sum=None,
        positions=lengths - 1,
        out_cache_loc=torch.zeros(size * (steps + 1), dtype=torch.int64),
        mrope_positions=None,
        rids_int=None,
        bootstrap_room_ids_int=None,
        sampling_info=None,
        spec_info=SimpleNamespace(
            topk_p=torch.zeros(size, 1),
            topk_index=torch.zeros(size, 1, dtype=torch.int64),
            draft_probs=None,
            hidden_states=None,
            dsa_topk_indices=None,
        ),
    )
    return live


def extend_runner(module: Any, runners: Any, table: torch.Tensor) -> Any:
    backend = module.QwenSparseAttnBackend(server(table))
    size, rows = max(BUCKETS), max(BUCKETS) * TOKENS
    backend.init_cuda_graph_state(size, rows)
    made = bare(
        runners.EAGLEDraftExtendCudaGraphRunner,
        backend,
        table,
        draft_extend_attn_backend=backend,
        attn_backend=backend,
        forward_mode=runners.ForwardMode.DRAFT_EXTEND_V2,
        speculative_num_steps=TOKENS - 1,
        captured_req_width=TOKENS,
        extend_seq_lens_cpu=[TOKENS] * size,
    )
    output = SimpleNamespace(next_token_logits=torch.zeros(size, 2), hidden_states=torch.zeros(size, 2))
    made.model_runner.model = SimpleNamespace(forward=lambda *_: output)
    made._publish_read_done = lambda in_graph: None

    def whole(count: int, fill: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.full((count,), fill, dtype=dtype)

    made.buffers = runners.EagleDraftExtendInputBuffers(
        input_ids=whole(rows),
        req_pool_indices=whole(size),
        mamba_track_indices=None,
        out_cache_loc=whole(rows),
        positions=whole(rows),
        mrope_positions=torch.zeros(3, rows, dtype=torch.int64),
        hidden_states=None,
        seq_lens=whole(size, made.seq_len_fill_value),
        seq_lens_cpu=whole(size, made.seq_len_fill_value),
        extend_seq_lens=whole(size, TOKENS, torch.int32),
        num_correct_drafts=whole(size, TOKENS, torch.int32),
        num_accept_tokens=whole(size, TOKENS, torch.int32),
        select_index=whole(size),
        next_token_logits_buffer=torch.zeros(size, 2),
        global_num_tokens_gpu=None,
        global_num_tokens_for_logprob_gpu=None,
    )
    made.buffers.share_buffers(exclude={"select_index"})
    made.buffers.reset_index_buffers()
    made.buffers.seq_lens.fill_(made.seq_len_fill_value)
    for bucket in reversed(BUCKETS):
        made.capture_one_shape(bucket, lambda: None)
    return made


def extend_batch(batch: Batch) -> Any:
    lengths, slots, extend = batch.tensors()
    size = len(lengths)
    tokens = torch.zeros(size * TOKENS, dtype=torch.int64)
    return SimpleNamespace(
        batch_size=size,
        input_ids=tokens,
        seq_lens=lengths,
        seq_lens_cpu=None,
        seq_lens_sum=None,
        req_pool_indices=slots,
        positions=tokens,
        mrope_positions=None,
        out_cache_loc=tokens,
        out_cache_loc_virtual=None,
        kv_loc_plan=None,
        kv_loc_cols=None,
        mamba_track_indices=None,
        extend_seq_lens=extend,
        extend_seq_lens_cpu=extend.tolist(),
        spec_info=SimpleNamespace(hidden_states=None, num_correct_drafts=None, num_accept_tokens=None, topk=1),
    )


def same(ours: Any, theirs: Any, mode: Any, size: int, names: tuple[str, ...]) -> None:
    pairs = zip(getattr(ours, "attn_backends", [ours]), getattr(theirs, "attn_backends", [theirs]), strict=True)
    for mine, other in pairs:
        a, b = mine._cuda_graph_metadata[(mode, size)], other._cuda_graph_metadata[(mode, size)]
        assert mine.forward_metadata is a
        for name in names:
            assert buffer(a, name).tolist() == buffer(b, name).tolist(), name


VALUES = ("sequence_lengths", "prefix_lengths", "compressed_lengths", "write_locs", "logical_positions")
RINGS = ("row_req_pool_indices", "pending_ring_slots", "ring_group_locs")


@pytest.mark.parametrize("mode", ["recorded", "direct"])
def test_draft_runner(plugin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    stats = plugin(mode=mode).stats
    runners = runner_module("eagle_draft_cuda_graph_runner", monkeypatch)
    table, steps = paged_table(SLOTS, WIDTH), 2
    ours = draft_runner(patched(), runners, table, steps)
    theirs = draft_runner(copy_of_module(), runners, table, steps)
    assert stats()["nodes"] == (len(BUCKETS) if mode == "recorded" else 0)
    draw = random.Random(0)
    for _ in range(20):
        batch = random_batch(draw, draw.randint(1, 8), slots=SLOTS, width=WIDTH)
        size = min(bucket for bucket in BUCKETS if bucket >= len(batch.seq_lens))
        for runner in (ours, theirs):
            runner.execute(draft_batch(batch, steps))
        same(ours.draft_attn_backend, theirs.draft_attn_backend, runners.ForwardMode.DECODE, size, VALUES + RINGS)
    assert stats()["recorded" if mode == "recorded" else "launched"] == 20


@pytest.mark.parametrize("mode", ["recorded", "direct"])
def test_draft_extend_runner(plugin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    stats = plugin(mode=mode).stats
    runners = runner_module("eagle_draft_extend_cuda_graph_runner", monkeypatch)
    table = paged_table(SLOTS, WIDTH)
    ours = extend_runner(patched(), runners, table)
    theirs = extend_runner(copy_of_module(), runners, table)
    draw = random.Random(1)
    for _ in range(20):
        batch = random_batch(draw, draw.randint(1, 8), slots=SLOTS, width=WIDTH)
        batch = Batch([n + e for n, e in zip(batch.seq_lens, batch.extend, strict=True)], batch.slots, batch.extend)
        size = min(bucket for bucket in BUCKETS if bucket >= len(batch.seq_lens))
        for runner in (ours, theirs):
            runner.execute(extend_batch(batch), torch.zeros(len(batch.seq_lens), dtype=torch.int64))
        mode_key = runners.ForwardMode.DRAFT_EXTEND_V2
        same(ours.draft_extend_attn_backend, theirs.draft_extend_attn_backend, mode_key, size, VALUES)
    assert stats()["recorded" if mode == "recorded" else "launched"] == 20
    assert (
        getattr(ours.draft_extend_attn_backend, ATTRIBUTE).buckets["extend"][8].inputs is not None or mode == "direct"
    )


def test_verify_view_is_made_of_the_registry_slots(plugin: Callable[..., Any]) -> None:
    """The view of a replay and the batch of the capture stand on the same addresses, and padding slots are zero."""
    from sglang.srt.model_executor import cuda_graph_buffer_registry as registry_module
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.model_executor.input_buffers import _forward_input_buffer_pool

    assert {"req_pool_indices"} <= registry_module.INDEX_SEMANTIC_BUFFERS
    runner = importlib.import_module("sglang.srt.model_executor.runner.decode_cuda_graph_runner")
    size, tokens = 8, 8 * TOKENS
    pooled = importlib.import_module("sglang.srt.model_executor.input_buffers").share_input_buffer
    buffers = SimpleNamespace(
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.zeros(tokens, dtype=torch.int64),
        req_pool_indices=pooled("req_pool_indices", torch.zeros(size, dtype=torch.int64)),
        seq_lens=pooled("seq_lens", torch.ones(size, dtype=torch.int64)),
        seq_lens_cpu=torch.ones(size, dtype=torch.int64),
        encoder_lens=None,
        mamba_track_indices=None,
    )
    assert any(key[0] == "seq_lens" for key in _forward_input_buffer_pool)

    class Live:
        """A live batch; every field that is not set is None."""

        forward_mode = ForwardMode.TARGET_VERIFY

        def __getattr__(self, name: str) -> None:
            return None

    view = runner.build_replay_fb_view(
        forward_batch=Live(),
        buffers=buffers,
        bs=4,
        raw_bs=3,
        num_tokens=4 * TOKENS,
        global_num_tokens_cpu=None,
        seq_len_fill_value=1,
        capture_forward_mode=ForwardMode.TARGET_VERIFY,
        is_encoder_decoder=False,
    )
    assert view.seq_lens.data_ptr() == buffers.seq_lens.data_ptr()
    assert view.req_pool_indices.data_ptr() == buffers.req_pool_indices.data_ptr()
    assert view.num_padding == 1
