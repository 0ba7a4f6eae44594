"""SGLang's own classes for every test here, or a skip that says why not."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sglang_harness import Engine

HERE = Path(__file__).parent


def _why_not() -> str:
    """Why SGLang's classes cannot be had here; empty where they can."""
    try:
        importlib.import_module("sglang.srt.layers.attention.qwen_sparse_attn_backend")
    except Exception as error:
        return f"SGLang is not usable here: {type(error).__name__}: {error}"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if HERE in item.path.parents]
    if not here:
        return
    reason = _why_not()
    for item in here:
        item.add_marker(pytest.mark.sglang)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def plugin() -> Iterator[Callable[..., Any]]:
    """Installs the plugin with these settings and returns its module. It is taken out after the test.

    CPU tensors are refreshed, and a fault of the plugin raises.
    """
    from qsa_group import sglang as plugin_module
    from qsa_group.sglang.counts import COUNTS
    from qsa_group.sglang.log import forget_said

    def install(**changes: Any) -> Any:
        assert plugin_module.install(plugin_module.Settings(**{"backend": "host", "strict": True, **changes}))
        return plugin_module

    COUNTS.reset()
    forget_said()
    yield install
    plugin_module.uninstall()


@pytest.fixture(scope="session")
def unpatched() -> Any:
    """A copy of SGLang's module that nothing has hooked."""
    from sglang_harness import copy_of_module

    return copy_of_module()


@pytest.fixture
def module() -> Any:
    """A copy of SGLang's module that a test may change."""
    from sglang_harness import copy_of_module

    return copy_of_module("changed_qsa_backend")


@pytest.fixture
def pair(plugin: Callable[..., Any], unpatched: Any) -> Callable[..., tuple[Engine, Engine]]:
    """Installs the plugin, and makes an engine on the hooked classes and one on classes that nothing has hooked.

    The graphs of both are captured.
    """
    from sglang_harness import BUCKETS, Engine

    def make(*, settings: dict[str, Any] | None = None, **options: Any) -> tuple[Engine, Engine]:
        plugin(**(settings or {}))
        ours, theirs = Engine(**options), Engine(unpatched, **options)
        for engine in (ours, theirs):
            engine.capture(*BUCKETS)
        return ours, theirs

    return make


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings and errors that the plugin logged."""
    caplog.set_level(logging.DEBUG, logger="qsa_group.sglang")

    def warnings() -> list[str]:
        ours = (record for record in caplog.records if record.name == "qsa_group.sglang")
        return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]

    return warnings
