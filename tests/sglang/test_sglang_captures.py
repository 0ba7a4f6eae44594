"""Captures: which graphs hold their refresh, and what SGLang's other calls at a capture do."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_harness import BUCKETS, Engine, random_rounds

from qsa_group import UnsupportedError
from qsa_group.sglang import planning, stats
from qsa_group.sglang.bridge import buffer


@pytest.mark.parametrize("phase", ["draft", "verify", "extend"])
def test_several_graphs_of_one_bucket(pair: Any, phase: str) -> None:
    ours, theirs = pair(phases=(phase,))
    (runner,) = ours.runners
    batch = runner.capture_batches[4]
    assert runner.bucket(4).recorded
    # A second graph of the bucket is captured without the call inside. Both graphs must be served.
    runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
    assert not runner.bucket(4).recorded
    random_rounds(ours, theirs)
    runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
    with runner.graphs[4].capture():
        runner.backend.init_forward_metadata_in_graph(batch)
    assert not runner.bucket(4).recorded
    random_rounds(ours, theirs)
    # New buffers mean new graphs, each with its refresh.
    runner.backend.init_cuda_graph_state(8, 8 * runner.width)
    (other,) = theirs.runners
    other.backend.init_cuda_graph_state(8, 8 * other.width)
    for each in (runner, other):
        each.capture(*BUCKETS)
    assert runner.bucket(4).recorded
    random_rounds(ours, theirs)


def test_graph_from_before_a_bucket_could_be_planned(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair(phases=("draft",))
    ours.draft.backend.init_cuda_graph_state(8, 8)
    theirs.draft.backend.init_cuda_graph_state(8, 8)

    def unsupported(*_: Any) -> Any:
        raise UnsupportedError("not yet")

    with monkeypatch.context() as broken:
        broken.setattr(planning, "request_table", unsupported)
        ours.draft.capture(*BUCKETS)
    assert not ours.draft.state.buckets["draft"]
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    # The graphs from before may still be replayed, and hold no refresh.
    assert not any(bucket.recorded for bucket in ours.draft.state.buckets["draft"].values())
    random_rounds(ours, theirs)


def test_debug_mode_runs_the_call_inside_at_each_replay(plugin: Any, unpatched: Any) -> None:
    plugin()
    ours, theirs = Engine(), Engine(unpatched)
    ours.capture(*BUCKETS, record=False)
    theirs.capture(*BUCKETS)
    for runner in ours.runners:
        for size, graph in runner.graphs.items():
            batch = runner.capture_batches[size]
            graph.replay = lambda runner=runner, batch=batch: runner.backend.init_forward_metadata_in_graph(batch)  # type: ignore[method-assign]
    random_rounds(ours, theirs)
    assert stats()["nodes"] == 0


def test_warm_up_leaves_every_row_inert(plugin: Any) -> None:
    plugin()
    engine = Engine()
    for runner in engine.runners:
        runner.capture(8, record=False)
        # A runner that did not clear its buffers leaves the values of the last batch there.
        runner.seq_lens.fill_(500)
        runner.slots.fill_(3)
        batch = runner.capture_batches[8]
        runner.backend.init_forward_metadata_out_graph(batch, in_capture=True)
        for _ in range(2):
            runner.backend.init_forward_metadata_in_graph(batch)
        for metadata in runner.metadata(8):
            assert buffer(metadata, "logical_positions").unique().tolist() == [0]
            assert buffer(metadata, "write_locs").unique().tolist() == [0]
            assert buffer(metadata, "pending_ring_slots").unique().tolist() == [0]
