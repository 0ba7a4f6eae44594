"""Taking the hooks out of SGLang again."""

from __future__ import annotations

from typing import Any

from sglang_harness import BUCKETS, MODULE, Engine, methods, patched, random_rounds

import qsa_group.sglang as plugin_module


def test_uninstall_gives_back_the_originals(plugin: Any) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    module = patched()
    before = methods(module)
    plugin()
    assert methods(module) != before
    plugin_module.uninstall()
    assert methods(module) == before
    assert "init_forward_metadata_in_graph" not in module.QwenSparseAttnBackend.__dict__
    assert not [target for target in HookRegistry._hooks if target.startswith(MODULE)]


def test_uninstall_below_another_plugins_wrapper(plugin: Any, unpatched: Any) -> None:
    plugin()
    owner = patched().QwenSparseMultiStepDraftBackend
    inner = owner.init_cuda_graph_state

    def outer(self: Any, max_bs: int, max_num_tokens: int) -> None:
        inner(self, max_bs, max_num_tokens)

    outer.__wrapped__ = inner  # type: ignore[attr-defined]
    owner.init_cuda_graph_state = outer
    try:
        plugin_module.uninstall()
        assert owner.init_cuda_graph_state is outer
        ours, theirs = Engine(), Engine(unpatched)
        for engine in (ours, theirs):
            engine.capture(*BUCKETS)
        random_rounds(ours, theirs, rounds=3)
        assert plugin_module.stats()["captures"] == 0
    finally:
        owner.init_cuda_graph_state = inner
        plugin()
        plugin_module.uninstall()


def test_engine_refreshes_itself_after_uninstall(pair: Any) -> None:
    ours, theirs = pair()
    plugin_module.uninstall()
    before = plugin_module.stats()["recorded"]
    random_rounds(ours, theirs, rounds=3)
    assert plugin_module.stats()["recorded"] == before
