"""SGLang's own graph runners with the plugin."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_harness import BUCKETS, grown, paged_table, patched, random_batch
from sglang_harness.real_runners import TOKENS, draft_batch, draft_runner, extend_batch, extend_runner, runner_module

from qsa_group.sglang.bridge import buffer
from qsa_group.sglang.state import ATTRIBUTE

WIDTH, SLOTS = 1024, 12


def assert_same(ours: Any, theirs: Any, mode: Any, size: int, names: tuple[str, ...]) -> None:
    """The named buffers of a bucket are equal, and each of our backends has the bucket's metadata."""
    pairs = zip(getattr(ours, "attn_backends", [ours]), getattr(theirs, "attn_backends", [theirs]), strict=True)
    for mine, other in pairs:
        our_metadata, their_metadata = (backend._cuda_graph_metadata[(mode, size)] for backend in (mine, other))
        assert mine.forward_metadata is our_metadata
        for name in names:
            assert buffer(our_metadata, name).tolist() == buffer(their_metadata, name).tolist(), name


# Buffers whose values do not follow from a row's request slot, and the others but the page table.
VALUES = ("sequence_lengths", "prefix_lengths", "compressed_lengths", "write_locs", "logical_positions")
RINGS = ("row_req_pool_indices", "pending_ring_slots", "ring_group_locs")


@pytest.mark.parametrize("mode", ["recorded", "direct"])
def test_draft_runner(plugin: Callable[..., Any], unpatched: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    stats = plugin(mode=mode).stats
    runners = runner_module("eagle_draft_cuda_graph_runner", monkeypatch)
    table, steps = paged_table(SLOTS, WIDTH), 2
    ours = draft_runner(patched(), runners, table, steps)
    theirs = draft_runner(unpatched, runners, table, steps)
    assert stats()["nodes"] == (len(BUCKETS) if mode == "recorded" else 0)
    draw = random.Random(0)
    for _ in range(20):
        batch = random_batch(draw, draw.randint(1, 8), slots=SLOTS, width=WIDTH)
        size = min(bucket for bucket in BUCKETS if bucket >= len(batch.seq_lens))
        for runner in (ours, theirs):
            runner.execute(draft_batch(batch, steps))
        assert_same(
            ours.draft_attn_backend, theirs.draft_attn_backend, runners.ForwardMode.DECODE, size, VALUES + RINGS
        )
    assert stats()["recorded" if mode == "recorded" else "launched"] == 20


@pytest.mark.parametrize("mode", ["recorded", "direct"])
def test_draft_extend_runner(
    plugin: Callable[..., Any], unpatched: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    stats = plugin(mode=mode).stats
    runners = runner_module("eagle_draft_extend_cuda_graph_runner", monkeypatch)
    table = paged_table(SLOTS, WIDTH)
    ours = extend_runner(patched(), runners, table)
    theirs = extend_runner(unpatched, runners, table)
    draw = random.Random(1)
    for _ in range(20):
        batch = grown(random_batch(draw, draw.randint(1, 8), slots=SLOTS, width=WIDTH))
        size = min(bucket for bucket in BUCKETS if bucket >= len(batch.seq_lens))
        for runner in (ours, theirs):
            runner.execute(extend_batch(batch), torch.zeros(len(batch.seq_lens), dtype=torch.int64))
        forward_mode = runners.ForwardMode.DRAFT_EXTEND_V2
        assert_same(ours.draft_extend_attn_backend, theirs.draft_extend_attn_backend, forward_mode, size, VALUES)
    assert stats()["recorded" if mode == "recorded" else "launched"] == 20
    bucket = getattr(ours.draft_extend_attn_backend, ATTRIBUTE).buckets["extend"][8]
    assert (bucket.planned.inputs is None) == (mode == "direct")


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
