"""Buckets, steps and calls that the plugin leaves to SGLang, with SGLang's values and a word in the log."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang_harness import BUCKETS, Batch, DraftRunner, Engine, random_batch, random_rounds

from qsa_group import LaunchError, LayoutError, PlanChangedError, ReplayPlanner, UnsupportedError
from qsa_group.sglang import planning, stats
from qsa_group.sglang.bucket import Bucket
from qsa_group.sglang.state import ATTRIBUTE


def served_by_sglang(engine: Engine, module: Any, rounds: int = 3, **options: Any) -> None:
    """Captures graphs of an engine, and compares its rounds with those of an engine that nothing has hooked."""
    theirs = Engine(module, **options)
    engine.capture(*BUCKETS)
    theirs.capture(*BUCKETS)
    random_rounds(engine, theirs, rounds=rounds)


def test_virtual_ids(plugin: Any, unpatched: Any, said: Any) -> None:
    plugin()
    engine = Engine()
    engine.model_runner.kv_index_translator.is_translating = True
    served_by_sglang(engine, unpatched)
    (warning,) = said()
    assert "is_translating" in warning
    assert stats()["captures"] == 0
    assert stats()["declined"] == 12


def test_cpu_tensors_are_left_to_host_staging(plugin: Any, unpatched: Any, said: Any) -> None:
    plugin(backend="auto")
    served_by_sglang(Engine(), unpatched)
    assert said() == []
    assert stats()["captures"] == 0


def test_no_kernel_to_be_had(plugin: Any, unpatched: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin()

    class Planner(ReplayPlanner):
        def plan(self, *_: Any, **__: Any) -> Any:
            raise UnsupportedError("nothing compiles here")

    monkeypatch.setattr(planning, "ReplayPlanner", Planner)
    served_by_sglang(Engine(phases=("draft",)), unpatched, phases=("draft",))
    (warning,) = said()
    assert "nothing compiles here" in warning
    assert stats()["declined"] == 4
    assert stats()["faults"] == 0


def test_a_request_table_of_another_form(plugin: Any, said: Any) -> None:
    plugin()
    engine = Engine(phases=("verify",))
    engine.verify.backend.req_to_token = engine.table.to(torch.int64)
    engine.capture(4)
    (warning,) = said()
    assert "left to SGLang: verify graphs: req_to_token has dtype" in warning
    assert stats()["declined"] == 1
    assert stats()["faults"] == 0


def test_objects_without_what_the_class_promises(plugin: Any, said: Any) -> None:
    plugin()
    engine = Engine()
    engine.capture(*BUCKETS)
    before = stats()["captures"]
    del engine.model_runner.token_to_kv_pool.qsa_compressed_page_size
    backend = engine.draft.backend
    backend.init_forward_metadata_out_graph(engine.draft.capture_batches[8], in_capture=True)
    assert stats()["captures"] == before
    (warning,) = said()
    assert "left to SGLang: draft graphs: AttributeError" in warning
    assert "while reading the request table and the sizes of the KV pool" in warning
    assert stats()["faults"] == 0


def test_a_step_that_cannot_be_planned_is_sglangs(pair: Any) -> None:
    ours, theirs = pair(steps=3, phases=("draft",))
    for engine in (ours, theirs):
        # SGLang copies into a buffer of any dtype. A plan takes int32 alone.
        backend = engine.draft.backend.attn_backends[1]
        backend._graph_write_locs = backend._graph_write_locs.to(torch.int64)
        engine.capture(*BUCKETS)
    random_rounds(ours, theirs, rounds=6)
    bucket = ours.draft.bucket(8)
    assert bucket.leftover == (1,)
    assert [steps for _, steps in bucket.planned.plans] == [(0, 2)]
    assert stats()["sglang_steps"] == 6


def test_a_verify_batch_with_more_draft_tokens_than_the_capture(plugin: Any) -> None:
    plugin(mode="direct")
    engine = Engine(phases=("verify",))
    engine.capture(4)
    batch = engine.verify.replay_batch(Batch([5, 6, 7], [1, 2, 3]), 4)
    batch.spec_info.draft_token_num += 1
    assert not engine.verify.bucket(4).replay(engine.verify.backend, batch)
    assert stats()["launched"] == 0


def test_a_launch_that_fails_raises(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(mode="direct")
    engine = Engine(phases=("draft",))
    engine.capture(4)

    def fail(*_: Any) -> None:
        raise LaunchError("no", name="CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(Bucket, "run", fail)
    with pytest.raises(LaunchError):
        engine.draft.round(random_batch(random.Random(0), 4, slots=12, width=1024))


def test_live_tensors_of_another_form_raise(plugin: Any) -> None:
    plugin(mode="direct", strict=False)
    engine = Engine(phases=("draft",))
    engine.capture(4)
    batch = engine.draft.replay_batch(Batch([5, 6, 7], [1, 2, 3]), 4)
    batch.seq_lens = batch.seq_lens.to(torch.float32)
    with pytest.raises(LayoutError, match="seq_lens"):
        engine.draft.backend.init_forward_metadata_out_graph(batch)


@pytest.mark.parametrize("name", ["seq_lens", "req_pool_indices"])
@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_tensors_that_the_graph_does_not_read(pair: Any, phase: str, name: str) -> None:
    ours, _ = pair(phases=(phase,))
    (runner,) = ours.runners
    batch = runner.replay_batch(Batch([5, 6, 7], [1, 2, 3], [1, 1, 1]), 4)
    setattr(batch, name, getattr(batch, name).clone())
    with pytest.raises(PlanChangedError, match="QSA_GROUP_SGLANG_MODE=direct"):
        runner.backend.init_forward_metadata_out_graph(batch)


@pytest.mark.parametrize("mode", ["recorded", "direct"])
def test_a_container_with_other_backends_than_at_the_capture(pair: Any, mode: str) -> None:
    """No backend may keep the metadata of an earlier batch without a word."""
    ours, _ = pair(settings={"mode": mode}, phases=("draft",))
    (runner,) = ours.runners
    batch = runner.replay_batch(Batch([5, 6, 7], [1, 2, 3], [1, 1, 1]), 4)
    runner.backend.attn_backends = runner.backend.attn_backends[:-1]
    with pytest.raises(PlanChangedError, match="capture the graphs again"):
        runner.backend.init_forward_metadata_out_graph(batch)
    assert stats()["recorded"] == stats()["launched"] == 0


def test_bucket_that_was_not_captured_is_left_to_sglang(pair: Any) -> None:
    ours, theirs = pair(phases=("draft",))
    for engine in (ours, theirs):
        with pytest.raises(KeyError):
            engine.draft.backend.init_forward_metadata_out_graph(engine.draft.replay_batch(Batch([], []), 0))


def test_no_step_backends(pair: Any) -> None:
    ours, theirs = pair(steps=0, phases=("draft",))
    for engine in (ours, theirs):
        engine.draft.round(Batch([5], [1]))
    assert not any(ours.draft.state.buckets.values())


def test_eager_metadata_is_untouched(plugin: Any, unpatched: Any) -> None:
    plugin()
    lengths = []
    for engine in (Engine(steps=3), Engine(unpatched, steps=3)):
        batch = engine.draft.capture_batch(2)
        batch.seq_lens, batch.req_pool_indices = torch.tensor([10, 20]), torch.tensor([3, 4])
        batch.seq_lens_cpu = batch.seq_lens.clone()
        batch.positions, batch.mrope_positions, batch.extend_seq_lens = batch.seq_lens - 1, None, None
        engine.draft.backend.init_forward_metadata(batch)
        backends = engine.draft.step_backends
        lengths.append([backend.forward_metadata.sequence_lengths.tolist() for backend in backends])
    assert lengths == [[[11, 21], [12, 22], [13, 23]]] * 2


def test_other_modes_of_a_backend_are_sglangs(plugin: Any) -> None:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    plugin()
    engine = Engine(phases=("verify",))
    backend = engine.verify.backend
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        batch_size=2,
        req_pool_indices=torch.tensor([1, 2]),
        seq_lens=torch.tensor([5, 9]),
        seq_lens_cpu=None,
        spec_info=None,
        num_padding=0,
    )
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    backend.init_forward_metadata_out_graph(batch)
    assert backend.forward_metadata.sequence_lengths.tolist() == [5, 9]
    assert stats()["captures"] == 0
    assert ATTRIBUTE not in backend.__dict__


def test_an_attribute_that_workers_ask_for_stays(plugin: Any) -> None:
    plugin()
    engine = Engine()
    container = engine.draft.backend
    assert isinstance(container, engine.module.QwenSparseMultiStepDraftBackend)
    assert container.needs_cpu_seq_lens is False
    assert len(container.attn_backends) == 2
    assert callable(container.set_mtp_shared_sparse_indices)
    assert isinstance(engine.draft, DraftRunner)
