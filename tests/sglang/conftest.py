"""SGLang's own classes, or a skip that says why not."""

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
    """Installs the plugin with these settings; it is taken out again after the test."""
    from qsa_group import sglang as plugin_module
    from qsa_group.sglang import counts

    def install(**changes: Any) -> Any:
        assert plugin_module.install(plugin_module.Settings(**{"backend": "host", **changes}))
        return plugin_module

    counts.COUNTS.reset()
    counts.forget_said()
    yield install
    plugin_module.uninstall()


@pytest.fixture
def engine(plugin: Callable[..., Any]) -> Callable[..., Engine]:
    """Makes the parts of an engine of SGLang's classes."""
    from sglang_harness import Engine

    return Engine


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings that the plugin logged."""
    caplog.set_level(logging.DEBUG, logger="qsa_group.sglang")

    def warnings() -> list[str]:
        ours = (record for record in caplog.records if record.name == "qsa_group.sglang")
        return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]

    return warnings
