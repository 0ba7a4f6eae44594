"""SGLang's own graph runners, with stand-ins for the graphs and for the model around them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .batches import Batch
from .engine import BUCKETS
from .graph import Graph
from .objects import model_runner

TOKENS = 4
"""Draft tokens of a request in target verify and draft extend."""

_MOST = max(BUCKETS)


class _Spec(SimpleNamespace):
    """Speculation settings: whatever is not set is off."""

    def __getattr__(self, name: str) -> Any:
        return False


class _Algorithm:
    """The speculative algorithm: EAGLE, and no other."""

    def __getattr__(self, name: str) -> Any:
        return lambda: name == "is_eagle"


class _Quiet:
    """Has every method, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


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
    """SGLang's module with a graph runner, usable without a server around it for the length of a test."""
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


def draft_runner(module: Any, runners: Any, table: torch.Tensor, steps: int) -> Any:
    """An `EAGLEDraftCudaGraphRunner` with its graphs captured.

    Args:
        module: the module with the backends.
        runners: the module with the runner.
        table: the request table.
        steps: draft steps.
    """
    backend = module.QwenSparseMultiStepDraftBackend(_server(table), topk=1, speculative_num_steps=steps + 1)
    backend.init_cuda_graph_state(_MOST, _MOST)
    worker = SimpleNamespace(speculative_num_steps=steps + 1)
    worker.draft_forward = lambda batch: (
        batch.positions.add_(steps),
        torch.zeros(_MOST, 1),
        torch.zeros(_MOST, steps),
        None,
    )
    runner = _bare(
        runners.EAGLEDraftCudaGraphRunner,
        backend,
        table,
        draft_attn_backend=backend,
        attn_backend=backend,
        eagle_worker=worker,
        speculative_num_steps=steps + 1,
        topk=1,
        captured_req_width=1,
        extend_seq_lens_cpu=[1] * _MOST,
        temperatures=torch.ones(_MOST, 1),
        top_ks=_integers(_MOST, dtype=torch.int32),
    )
    runner.buffers = runners.EagleDraftInputBuffers(
        input_ids=_integers(_MOST),
        req_pool_indices=_integers(_MOST),
        out_cache_loc=_integers(_MOST * (steps + 1)),
        positions=_integers(_MOST),
        mrope_positions=_integers(3, _MOST),
        rids_int=None,
        bootstrap_room_ids_int=None,
        seq_lens=_integers(_MOST, fill=runner.seq_len_fill_value),
        seq_lens_cpu=_integers(_MOST, fill=runner.seq_len_fill_value),
        extend_seq_lens=_integers(_MOST, dtype=torch.int32, fill=1),
        topk_p=torch.zeros(_MOST, 1),
        topk_index=_integers(_MOST, 1),
        draft_probs=None,
        sampling_seed=None,
        hidden_states=None,
        global_num_tokens_gpu=None,
        global_num_tokens_for_logprob_gpu=None,
    )
    runner.buffers.share_buffers()
    _capture_all(runner)
    return runner


def draft_batch(batch: Batch, steps: int) -> Any:
    """A live batch with the attributes that the draft runner reads."""
    lengths, slots, _ = batch.tensors()
    size = len(lengths)

    class Live:
        pass

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
    """An `EAGLEDraftExtendCudaGraphRunner` with its graphs captured; the arguments are those of `draft_runner`."""
    backend = module.QwenSparseAttnBackend(_server(table))
    rows = _MOST * TOKENS
    backend.init_cuda_graph_state(_MOST, rows)
    runner = _bare(
        runners.EAGLEDraftExtendCudaGraphRunner,
        backend,
        table,
        draft_extend_attn_backend=backend,
        attn_backend=backend,
        forward_mode=runners.ForwardMode.DRAFT_EXTEND_V2,
        speculative_num_steps=TOKENS - 1,
        captured_req_width=TOKENS,
        extend_seq_lens_cpu=[TOKENS] * _MOST,
    )
    output = SimpleNamespace(next_token_logits=torch.zeros(_MOST, 2), hidden_states=torch.zeros(_MOST, 2))
    runner.model_runner.model = SimpleNamespace(forward=lambda *_: output)
    runner._publish_read_done = lambda in_graph: None
    runner.buffers = runners.EagleDraftExtendInputBuffers(
        input_ids=_integers(rows),
        req_pool_indices=_integers(_MOST),
        mamba_track_indices=None,
        out_cache_loc=_integers(rows),
        positions=_integers(rows),
        mrope_positions=_integers(3, rows),
        hidden_states=None,
        seq_lens=_integers(_MOST, fill=runner.seq_len_fill_value),
        seq_lens_cpu=_integers(_MOST, fill=runner.seq_len_fill_value),
        extend_seq_lens=_integers(_MOST, dtype=torch.int32, fill=TOKENS),
        num_correct_drafts=_integers(_MOST, dtype=torch.int32, fill=TOKENS),
        num_accept_tokens=_integers(_MOST, dtype=torch.int32, fill=TOKENS),
        select_index=_integers(_MOST),
        next_token_logits_buffer=torch.zeros(_MOST, 2),
        global_num_tokens_gpu=None,
        global_num_tokens_for_logprob_gpu=None,
    )
    runner.buffers.share_buffers(exclude={"select_index"})
    _capture_all(runner)
    return runner


def extend_batch(batch: Batch) -> Any:
    """A live batch with the attributes that the draft extend runner reads."""
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


def _server(table: torch.Tensor) -> Any:
    """A model runner with the attributes that the graph runners read."""
    runner = model_runner(table)
    runner.spec_algorithm = _Algorithm()
    runner.device_timer = runner.canary_manager = None
    runner.model_config.model_is_mrope, runner.model_config.vocab_size = False, 32
    runner.kv_index_translator = SimpleNamespace(is_translating=False, bind_runner_slots=lambda batch: None)
    return runner


def _bare(cls: type[Any], backend: Any, table: torch.Tensor, **values: Any) -> Any:
    """A graph runner without its constructor, which builds the model's side too."""
    backends = getattr(backend, "attn_backends", None) or [backend]
    runner = object.__new__(cls)
    runner.__dict__.update(
        model_runner=_server(table),
        device="cpu",
        require_gathered_buffer=False,
        require_mlp_tp_gather=False,
        require_mlp_sync=False,
        require_attn_tp_gather=False,
        disable_padding=False,
        attn_dp_size=1,
        capture_bs=list(BUCKETS),
        max_bs=_MOST,
        seq_len_fill_value=int(backends[0].get_cuda_graph_seq_len_fill_value()),
        deepep_adapter=_Quiet(),
        backend=_GraphBackend(),
        model_context=contextlib.nullcontext,
        **values,
    )
    return runner


def _integers(*shape: int, dtype: torch.dtype = torch.int64, fill: int = 0) -> torch.Tensor:
    return torch.full(shape, fill, dtype=dtype)


def _capture_all(runner: Any) -> None:
    """Clears the buffers and captures every bucket, the largest first, as the runner's constructor does."""
    runner.buffers.reset_index_buffers()
    runner.buffers.seq_lens.fill_(runner.seq_len_fill_value)
    for size in reversed(BUCKETS):
        runner.capture_one_shape(size, lambda: None)
