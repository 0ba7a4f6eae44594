"""An SGLang that is not as the plugin knows it runs unpatched, and one warning says why."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from sglang_harness import MODULE, Engine, assert_same_round, copy_of_module, random_batch

import qsa_group.sglang as plugin_module
from qsa_group.errors import LaunchError, UnsupportedError
from qsa_group.sglang import hooks, probe, refresh
from qsa_group.sglang.settings import Settings, SettingsError

HOST = Settings(backend="host")


@pytest.fixture
def module() -> Any:
    """A copy of SGLang's module that a test may change."""
    return copy_of_module("changed_qsa_backend")


def methods(module: Any) -> list[Any]:
    return [
        owner.__dict__.get(name)
        for owner in (module.QwenSparseMultiStepDraftBackend, module.QwenSparseAttnBackend)
        for name in probe.HOOKED_METHODS
    ]


def refuses(module: Any, said: Callable[[], list[str]], reason: str) -> None:
    """Registering twice leaves the classes alone, with one warning that names the reason."""
    before = methods(module)
    for _ in range(2):
        assert not plugin_module.install(HOST, module=module.__name__)
    assert methods(module) == before
    (warning,) = said()
    assert "stays out of SGLang" in warning
    assert reason in warning


def test_one_more_keyword(plugin: Any, module: Any, said: Any) -> None:
    original = module.QwenSparseMultiStepDraftBackend.init_forward_metadata_out_graph

    def longer(self: Any, forward_batch: Any, in_capture: bool = False, stream: Any = None) -> None:
        original(self, forward_batch, in_capture)

    module.QwenSparseMultiStepDraftBackend.init_forward_metadata_out_graph = longer
    refuses(module, said, "init_forward_metadata_out_graph takes (self, forward_batch, in_capture, stream)")


@pytest.mark.parametrize("name", ["QwenSparseMultiStepDraftBackend", "QwenSparseAttnBackend", "QSAIndexerMetadata"])
def test_missing_class(plugin: Any, module: Any, said: Any, name: str) -> None:
    delattr(module, name)
    assert not plugin_module.install(HOST, module=module.__name__)
    assert not plugin_module.install(HOST, module=module.__name__)
    (warning,) = said()
    assert f"has no {name}" in warning


@pytest.mark.parametrize("name", ["_stage_extend_lens", "should_reuse_mtp_sparse_indices"])
def test_missing_method(plugin: Any, module: Any, said: Any, name: str) -> None:
    delattr(module.QwenSparseAttnBackend, name)
    refuses(module, said, f"QwenSparseAttnBackend has no {name}")


def test_missing_field(plugin: Any, module: Any, said: Any) -> None:
    import msgspec

    original = module.QSAIndexerMetadata
    fields = [name for name in original.__struct_fields__ if name != "graph_ring_group_locs"]
    module.QSAIndexerMetadata = msgspec.defstruct("QSAIndexerMetadata", fields)
    refuses(module, said, "QSAIndexerMetadata has no field graph_ring_group_locs")


def test_unknown_field(plugin: Any, module: Any, said: Any) -> None:
    import msgspec

    fields = [*module.QwenSparseAttnMetadata.__struct_fields__, "graph_block_masks"]
    module.QwenSparseAttnMetadata = msgspec.defstruct("QwenSparseAttnMetadata", fields)
    refuses(module, said, "QwenSparseAttnMetadata has the unknown field graph_block_masks")


def test_module_that_cannot_be_imported(plugin: Any, said: Any) -> None:
    assert not plugin_module.install(HOST, module="sglang.srt.layers.attention.no_such_backend")
    (warning,) = said()
    assert "cannot be imported (ModuleNotFoundError" in warning


def test_everything_that_is_wrong_is_said_at_once(plugin: Any, module: Any, said: Any) -> None:
    del module.QwenSparseAttnBackend._stage_extend_lens
    del module.QwenSparseMultiStepDraftBackend.init_cuda_graph_state
    refuses(module, said, "QwenSparseMultiStepDraftBackend has no init_cuda_graph_state; ")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("QSA_GROUP_SGLANG_MODE", "fast"),
        ("QSA_GROUP_SGLANG_PHASES", "draft,prefill"),
        ("QSA_GROUP_SGLANG_VERIFY", "often"),
        ("QSA_GROUP_SGLANG_STATS", "-1"),
        ("QSA_GROUP_SGLANG_BUFFERS", "some"),
    ],
)
def test_a_switch_with_an_unknown_value(
    plugin: Any, said: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=variable):
        Settings.from_env()
    for _ in range(4):
        assert not plugin_module.register()
    (warning,) = said()
    assert variable in warning


def test_off(plugin: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSA_GROUP_SGLANG_MODE", "off")
    before = methods(importlib.import_module(MODULE))
    assert not plugin_module.install()
    assert methods(importlib.import_module(MODULE)) == before
    assert said() == []


def test_defaults_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from qsa_group.sglang.settings import VARIABLES

    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    assert Settings.from_env() == Settings()
    for variable in VARIABLES:
        monkeypatch.setenv(variable.name, variable.default)
    assert Settings.from_env() == Settings()


def served_by_sglang(engine: Engine, module: Any, rounds: int = 3, **options: Any) -> None:
    theirs = Engine(module, **options)
    engine.capture(1, 2, 4, 8)
    theirs.capture(1, 2, 4, 8)
    draw = random.Random(0)
    for _ in range(rounds):
        assert_same_round(engine, theirs, random_batch(draw, draw.randint(1, 8), slots=12, width=1024))


def test_virtual_ids(plugin: Any, module: Any, said: Any) -> None:
    stats = plugin().stats
    engine = Engine()
    engine.model_runner.kv_index_translator.is_translating = True
    served_by_sglang(engine, module)
    (warning,) = said()
    assert "is_translating" in warning
    assert stats()["captures"] == 0
    assert stats()["declined"] == 12


def test_cpu_tensors_are_left_to_host_staging(plugin: Any, module: Any, said: Any) -> None:
    stats = plugin(backend="auto").stats
    served_by_sglang(Engine(), module)
    assert said() == []
    assert stats()["captures"] == 0


def test_no_kernel_to_be_had(plugin: Any, module: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = plugin().stats

    class Planner(refresh.ReplayPlanner):
        def plan(self, *_: Any, **__: Any) -> Any:
            raise UnsupportedError("nothing compiles here")

    monkeypatch.setattr(refresh, "ReplayPlanner", Planner)
    served_by_sglang(Engine(phases=("draft",)), module, phases=("draft",))
    (warning,) = said()
    assert "nothing compiles here" in warning
    assert stats()["declined"] == 4


def test_objects_without_what_the_class_promises(plugin: Any, module: Any, said: Any) -> None:
    stats = plugin().stats
    engine = Engine()
    engine.capture(1, 2, 4, 8)
    before = stats()["captures"]
    del engine.model_runner.token_to_kv_pool.qsa_compressed_page_size
    backend = engine.draft.backend
    backend.init_forward_metadata_out_graph(engine.draft.capture_batches[8], in_capture=True)
    assert stats()["captures"] == before
    (warning,) = said()
    assert "left to SGLang: draft graphs: AttributeError" in warning


def test_a_launch_that_fails_raises(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(mode="direct")
    engine = Engine(phases=("draft",))
    engine.capture(4)

    def fail(*_: Any) -> None:
        raise LaunchError("no", name="CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(refresh.Bucket, "_run", fail)
    with pytest.raises(LaunchError):
        engine.draft.round(random_batch(random.Random(0), 4, slots=12, width=1024))


def test_uninstall_gives_back_the_originals(plugin: Any, module: Any) -> None:
    found = importlib.import_module(MODULE)
    before = methods(found)
    plugin()
    assert methods(found) != before
    plugin_module.uninstall()
    assert methods(found) == before
    assert "init_forward_metadata_in_graph" not in found.QwenSparseAttnBackend.__dict__
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert not [target for target in HookRegistry._hooks if target.startswith(MODULE)]


def test_uninstall_below_another_plugins_wrapper(plugin: Any, module: Any) -> None:
    plugin()
    owner = importlib.import_module(MODULE).QwenSparseMultiStepDraftBackend
    inner = owner.init_cuda_graph_state

    def outer(self: Any, max_bs: int, max_num_tokens: int) -> None:
        inner(self, max_bs, max_num_tokens)

    outer.__wrapped__ = inner  # type: ignore[attr-defined]
    owner.init_cuda_graph_state = outer
    try:
        plugin_module.uninstall()
        assert owner.init_cuda_graph_state is outer
        served_by_sglang(Engine(), module)
        assert plugin_module.stats()["captures"] == 0
    finally:
        owner.init_cuda_graph_state = inner
        plugin()
        plugin_module.uninstall()


def test_engine_refreshes_itself_after_uninstall(plugin: Any, module: Any) -> None:
    plugin()
    ours, theirs = Engine(), Engine(module)
    for engine in (ours, theirs):
        engine.capture(1, 2, 4, 8)
    plugin_module.uninstall()
    before = plugin_module.stats()["recorded"]
    draw = random.Random(0)
    for _ in range(3):
        assert_same_round(ours, theirs, random_batch(draw, draw.randint(1, 8), slots=12, width=1024))
    assert plugin_module.stats()["recorded"] == before


def test_diagnosis(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin()
    text = "\n".join(plugin_module.diagnose())
    assert "this SGLang fits" in text
    assert "mode: recorded" in text
    assert "no CUDA device" in text or "started" in text
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    assert "loads the plugin" not in plugin_module.diagnose()[0]
    monkeypatch.setattr(hooks, "_settings", None)
    monkeypatch.setenv("QSA_GROUP_SGLANG_MODE", "fast")
    assert "the plugin would stay out" in "\n".join(plugin_module.diagnose())
