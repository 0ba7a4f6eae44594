"""An SGLang that the plugin does not know stays as it is, and one warning says why."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
from sglang_harness import methods

import qsa_group.sglang as plugin_module
from qsa_group.sglang import Settings

HOST = Settings(backend="host", strict=True)


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


def test_missing_forward_mode(plugin: Any, module: Any, said: Any) -> None:
    module.ForwardMode = enum.Enum("ForwardMode", ["DECODE", "TARGET_VERIFY"])
    refuses(module, said, "ForwardMode has no DRAFT_EXTEND_V2")


def test_module_that_cannot_be_imported(plugin: Any, said: Any) -> None:
    assert not plugin_module.install(HOST, module="sglang.srt.layers.attention.no_such_backend")
    (warning,) = said()
    assert "cannot be imported (ModuleNotFoundError" in warning


def test_everything_that_is_wrong_is_said_at_once(plugin: Any, module: Any, said: Any) -> None:
    del module.QwenSparseAttnBackend._stage_extend_lens
    del module.QwenSparseMultiStepDraftBackend.init_cuda_graph_state
    refuses(module, said, "QwenSparseMultiStepDraftBackend has no init_cuda_graph_state; ")
