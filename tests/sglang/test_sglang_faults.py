"""Exceptions: an SGLang that is not as expected, a fault of the plugin, and what each means at each place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from sglang_harness import BUCKETS, Batch, Engine, assert_same_round, random_rounds

from qsa_group import LaunchError
from qsa_group.sglang import UnexpectedSGLangError, compare, planning, stats
from qsa_group.sglang import bucket as bucket_module
from qsa_group.sglang.bucket import Bucket
from qsa_group.sglang.faults import reading

PHASES = ("draft", "verify", "extend")
FAULTS = (AttributeError, KeyError, TypeError, ValueError, RuntimeError, ZeroDivisionError)
BATCH = Batch([63, 64, 65], [1, 2, 3], [4, 4, 4])


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


@pytest.fixture
def tracebacks(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The errors that the plugin logged with a traceback."""

    def errors() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.name == "qsa_group.sglang" and record.levelno == logging.ERROR and record.exc_info
        ]

    return errors


# Reading SGLang's objects ---------------------------------------------------------------------------------------------


def test_reading_says_what_was_read_and_what_was_wrong() -> None:
    with pytest.raises(UnexpectedSGLangError) as caught, reading("the size of a pool"):
        object().size  # type: ignore[attr-defined]  # noqa: B018
    assert caught.value.what == "the size of a pool"
    assert caught.value.problem == "AttributeError: 'object' object has no attribute 'size'"
    assert "QSA_GROUP_SGLANG_MODE=off" in str(caught.value)


def test_reading_lets_the_errors_of_the_package_through() -> None:
    error = LaunchError("no")
    with pytest.raises(LaunchError) as caught, reading("anything"):
        raise error
    assert caught.value is error


def without_metadata(runner: Any, batch: Any) -> None:
    for backend in runner.step_backends:
        del backend._cuda_graph_metadata


def without_table(runner: Any, batch: Any) -> None:
    for backend in runner.step_backends:
        del backend.req_to_token


def without_tensors(runner: Any, batch: Any) -> None:
    batch.req_pool_indices = None


def without_answer(runner: Any, batch: Any) -> None:
    for backend in runner.step_backends:
        backend.should_reuse_mtp_sparse_indices = raising(RuntimeError("no such state"))


def without_draft_token_num(runner: Any, batch: Any) -> None:
    del batch.spec_info.draft_token_num


def without_extend_lens(runner: Any, batch: Any) -> None:
    runner.backend._capture_extend_seq_lens = raising(TypeError("one argument more"))


@pytest.mark.parametrize(
    ("phase", "change", "what"),
    [
        *((phase, without_metadata, "graph metadata") for phase in PHASES),
        *((phase, without_table, "the request table") for phase in PHASES),
        *((phase, without_tensors, "pool of input buffers") for phase in PHASES),
        ("draft", without_answer, "should_reuse_mtp_sparse_indices"),
        ("verify", without_draft_token_num, "the batch of the verify capture"),
        ("extend", without_extend_lens, "_capture_extend_seq_lens"),
    ],
)
def test_unexpected_objects_at_a_capture_leave_the_bucket_to_sglang(
    plugin: Any, said: Any, phase: str, change: Callable[[Any, Any], None], what: str
) -> None:
    plugin()
    engine = Engine(phases=(phase,))
    engine.capture(4)
    (runner,) = engine.runners
    batch = runner.capture_batches[4]
    change(runner, batch)
    runner.state.capture(runner.backend, phase, runner.mode, batch)
    (warning,) = said()
    assert warning.startswith(f"left to SGLang: {phase} graphs: ")
    assert what in warning
    assert not runner.state.buckets[phase]
    assert stats()["declined"] == 1
    assert stats()["faults"] == 0


# Planning -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_while_planning_raises_if_strict(plugin: Any, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    plugin()
    monkeypatch.setattr(planning.ReplayPlanner, "plan", raising(kind("ours")))
    with pytest.raises(kind, match="ours"):
        Engine(phases=("draft",)).capture(4)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_while_planning_leaves_the_bucket_to_sglang(
    plugin: Any, unpatched: Any, monkeypatch: pytest.MonkeyPatch, said: Any, tracebacks: Any, kind: Any
) -> None:
    plugin(strict=False)
    ours, theirs = Engine(), Engine(unpatched)
    monkeypatch.setattr(planning.ReplayPlanner, "plan", raising(kind("ours")))
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    random_rounds(ours, theirs)
    assert said() == tracebacks()
    assert len(said()) == len(PHASES)
    for phase, text in zip(PHASES, said(), strict=True):
        assert text.startswith(f"a fault of qsa_group while planning a {phase} bucket: {kind.__name__}: ")
    assert stats()["faults"] == stats()["declined"] == 12
    assert stats()["captures"] == 0


@pytest.mark.parametrize("strict", [True, False])
def test_an_argument_of_the_planner_that_is_wrong_is_a_fault(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """A wrong mode word is a `LayoutError`, as is a buffer of another form. SGLang has no part in the word."""
    plugin(strict=strict)
    monkeypatch.setitem(planning.PLAN_MODES, "draft", "decoding")
    engine = Engine(phases=("draft",))
    if strict:
        with pytest.raises(ValueError, match="decoding"):
            engine.capture(4)
    else:
        engine.capture(4)
        assert stats()["faults"] == 1


# Replays without a recorded refresh -----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_at_a_replay_raises_if_strict(pair: Any, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    ours, _ = pair(settings={"mode": "direct"}, phases=(phase,))
    monkeypatch.setattr(Bucket, "run", raising(TypeError("ours")))
    with pytest.raises(TypeError, match="ours"):
        ours.round(BATCH)


@pytest.mark.parametrize("settings", [{}, {"verify_every": 1}, {"log_every": 1}])
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_at_a_replay_leaves_the_bucket_to_sglang(
    pair: Any, monkeypatch: pytest.MonkeyPatch, said: Any, tracebacks: Any, phase: str, settings: dict[str, int]
) -> None:
    ours, theirs = pair(settings={"mode": "direct", "strict": False, **settings}, phases=(phase,))
    with monkeypatch.context() as broken:
        broken.setattr(Bucket, "run", raising(TypeError("ours")))
        assert_same_round(ours, theirs, BATCH)
    (runner,) = ours.runners
    assert sorted(runner.state.buckets[phase]) == sorted(runner.state.in_service[phase]) == [1, 2, 8]
    # The bucket stays SGLang's, the others do not become SGLang's.
    assert_same_round(ours, theirs, BATCH)
    assert (stats()["sglang"], stats()["launched"]) == (2, 0)
    assert_same_round(ours, theirs, Batch([5, 6], [1, 2], [1, 1]))
    assert (stats()["sglang"], stats()["launched"]) == (2, 1)
    assert said() == tracebacks()
    (text,) = said()
    assert text.startswith(f"a fault of qsa_group while refreshing a {phase} bucket: TypeError: ours")
    assert (stats()["faults"], stats()["declined"]) == (1, 1)


def test_each_fault_counts_and_one_is_logged(
    pair: Any, monkeypatch: pytest.MonkeyPatch, said: Any, tracebacks: Any
) -> None:
    ours, _ = pair(settings={"mode": "direct", "strict": False}, phases=("draft",))
    monkeypatch.setattr(Bucket, "run", raising(TypeError("ours")))
    for size in BUCKETS:
        ours.draft.round(Batch([5] * size, range(1, size + 1)), size=size)
    assert len(said()) == len(tracebacks()) == 1
    assert stats()["faults"] == len(BUCKETS)


def test_graphs_captured_after_a_fault_are_served_again(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair(settings={"strict": False}, phases=("draft",), shared=False)
    with monkeypatch.context() as broken:
        broken.setattr(Bucket, "run", raising(TypeError("ours")))
        ours.round(BATCH)
    for engine in (ours, theirs):
        engine.capture(*BUCKETS)
    assert_same_round(ours, theirs, BATCH)
    assert (stats()["sglang"], stats()["launched"]) == (1, 1)


def test_unexpected_objects_at_a_replay_leave_the_bucket_to_sglang(pair: Any, said: Any) -> None:
    ours, theirs = pair(settings={"mode": "direct"}, phases=("extend",))
    backend = ours.extend.backend
    stage, calls = backend._stage_extend_lens, []

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise TypeError("one argument more")
        return stage(*arguments)

    backend._stage_extend_lens = fails_once
    assert_same_round(ours, theirs, BATCH)
    (warning,) = said()
    assert "left to SGLang: extend graphs: TypeError: one argument more, while reading _stage_extend_lens" in warning
    assert (stats()["sglang"], stats()["launched"], stats()["faults"]) == (1, 0, 0)
    assert 4 not in ours.extend.state.buckets["extend"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_live_batch_without_its_tensors_is_unexpected(pair: Any, said: Any, phase: str) -> None:
    ours, _ = pair(settings={"mode": "direct"}, phases=(phase,))
    (runner,) = ours.runners
    batch = runner.replay_batch(BATCH, 4)
    del batch.req_pool_indices
    # SGLang's own refresh needs the tensors as well.
    with pytest.raises(AttributeError):
        runner.backend.init_forward_metadata_out_graph(batch)
    (warning,) = said()
    assert f"the inputs of a {phase} batch" in warning
    assert stats()["faults"] == 0


def test_a_comparison_that_sglang_cannot_make_leaves_the_bucket_to_sglang(pair: Any, said: Any) -> None:
    ours, theirs = pair(settings={"mode": "direct", "verify_every": 1}, phases=("draft",))
    metadata_type = type(ours.draft.metadata(4)[0])

    class OfAnotherType:
        __struct_fields__ = metadata_type.__struct_fields__

        def __init__(self, metadata: Any) -> None:
            for name in self.__struct_fields__:
                setattr(self, name, getattr(metadata, name))

    backend = ours.draft.step_backends[0]
    key = (ours.draft.mode, 4)
    backend._cuda_graph_metadata[key] = OfAnotherType(backend._cuda_graph_metadata[key])
    assert_same_round(ours, theirs, BATCH)
    (warning,) = said()
    assert "while reading the fields of the graph metadata" in warning
    assert (stats()["sglang"], stats()["verified"], stats()["faults"]) == (1, 0, 0)


# Recorded refreshes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_at_the_replay_of_a_recorded_refresh_raises(
    pair: Any, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """The graph would refresh its buffers after SGLang has, from inputs that nobody checked."""
    ours, _ = pair(settings={"strict": False}, phases=(phase,))
    (runner,) = ours.runners
    batch = runner.replay_batch(BATCH, 4)
    batch.seq_lens = batch.seq_lens.clone()
    monkeypatch.setattr(bucket_module, "batch_addresses", raising(TypeError("ours")))
    with pytest.raises(TypeError, match="ours"):
        runner.backend.init_forward_metadata_out_graph(batch)
    assert runner.bucket(4).recorded
    assert stats()["declined"] == stats()["sglang"] == 0


def test_an_unexpected_object_at_the_replay_of_a_recorded_refresh_raises(pair: Any) -> None:
    ours, _ = pair(settings={"strict": False}, phases=("verify",))
    batch = ours.verify.replay_batch(BATCH, 4)
    del batch.seq_lens
    with pytest.raises(UnexpectedSGLangError, match="the inputs of a verify batch"):
        ours.verify.backend.init_forward_metadata_out_graph(batch)


@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_at_the_launch_of_a_bucket_with_a_recorded_graph_raises(
    pair: Any, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    ours, _ = pair(settings={"strict": False}, phases=(phase,))
    (runner,) = ours.runners
    # A second graph without the refresh: from here on there is a launch before each replay.
    runner.backend.init_forward_metadata_out_graph(runner.capture_batches[4], in_capture=True)
    assert not runner.bucket(4).recorded
    monkeypatch.setattr(Bucket, "run", raising(TypeError("ours")))
    with pytest.raises(TypeError, match="ours"):
        runner.backend.init_forward_metadata_out_graph(runner.replay_batch(BATCH, 4))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_before_the_recording_leaves_the_bucket_to_sglang(
    plugin: Any, unpatched: Any, monkeypatch: pytest.MonkeyPatch, tracebacks: Any, phase: str, strict: bool
) -> None:
    plugin(strict=strict)
    ours, theirs = Engine(phases=(phase,)), Engine(unpatched, phases=(phase,))
    with monkeypatch.context() as broken:
        broken.setattr(bucket_module, "batch_addresses", raising(TypeError("ours")))
        if strict:
            with pytest.raises(TypeError, match="ours"):
                ours.capture(*BUCKETS)
            return
        ours.capture(*BUCKETS)
    theirs.capture(*BUCKETS)
    random_rounds(ours, theirs)
    assert len(tracebacks()) == 1
    assert (stats()["faults"], stats()["sglang"], stats()["nodes"]) == (len(BUCKETS), 4, 0)


@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_in_the_warm_up_leaves_the_bucket_to_sglang(
    plugin: Any, unpatched: Any, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    plugin(strict=False)
    ours, theirs = Engine(phases=(phase,)), Engine(unpatched, phases=(phase,))
    with monkeypatch.context() as broken:
        broken.setattr(Bucket, "run", raising(TypeError("ours")))
        ours.capture(*BUCKETS)
    theirs.capture(*BUCKETS)
    random_rounds(ours, theirs)
    assert (stats()["faults"], stats()["sglang"], stats()["nodes"]) == (len(BUCKETS), 4, 0)


def test_a_fault_in_the_middle_of_a_recording_raises(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph may hold a part of the refresh, which nothing takes out again."""
    plugin(strict=False)
    engine = Engine(phases=("draft",))
    engine.capture(4, record=False)
    backend, batch = engine.draft.backend, engine.draft.capture_batches[4]
    monkeypatch.setattr(bucket_module, "capturing", lambda tensor: True)
    monkeypatch.setattr(Bucket, "run", raising(TypeError("ours")))
    with pytest.raises(TypeError, match="ours"):
        backend.init_forward_metadata_in_graph(batch)
    # Nor is the bucket left to SGLang later.
    with pytest.raises(TypeError, match="ours"):
        backend.init_forward_metadata_out_graph(engine.draft.replay_batch(BATCH, 4))
    assert stats()["declined"] == stats()["nodes"] == 0


@pytest.mark.parametrize("on", [True, False])
def test_a_launch_that_fails_at_the_capture_raises(plugin: Any, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    plugin(strict=False)
    engine = Engine(phases=("draft",))
    monkeypatch.setattr(bucket_module, "capturing", lambda tensor: on)
    monkeypatch.setattr(Bucket, "run", raising(LaunchError("no", name="CUDA_ERROR_LAUNCH_FAILED")))
    with pytest.raises(LaunchError):
        engine.capture(4)


def test_a_fault_of_the_comparison_at_a_recorded_replay_raises(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair(settings={"strict": False, "verify_every": 1}, phases=("draft",))
    monkeypatch.setattr(compare, "copy_of_metadata", raising(TypeError("ours")))
    with pytest.raises(TypeError, match="ours"):
        ours.round(BATCH)
