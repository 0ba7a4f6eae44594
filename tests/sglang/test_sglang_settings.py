"""The settings, and what the guide and `qsa-group doctor` say about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglang_harness import methods, patched

import qsa_group.sglang as plugin_module
from qsa_group.sglang.diagnosis import TESTED
from qsa_group.sglang.settings import VARIABLES, Settings, SettingsError

GUIDE = Path(__file__).parents[2] / "docs" / "sglang.md"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("QSA_GROUP_SGLANG_MODE", "fast"),
        ("QSA_GROUP_SGLANG_PHASES", "draft,prefill"),
        ("QSA_GROUP_SGLANG_VERIFY", "often"),
        ("QSA_GROUP_SGLANG_STATS", "-1"),
        ("QSA_GROUP_SGLANG_BUFFERS", "some"),
        ("QSA_GROUP_SGLANG_STRICT", "yes"),
    ],
)
def test_a_variable_with_an_unknown_value(
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
    before = methods(patched())
    assert not plugin_module.install()
    assert methods(patched()) == before
    assert said() == []


def test_defaults_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    assert Settings.from_env() == Settings()
    for variable in VARIABLES:
        monkeypatch.setenv(variable.name, variable.default)
    assert Settings.from_env() == Settings()


def test_every_variable_sets_something() -> None:
    others = {
        "QSA_GROUP_SGLANG_MODE": "triton",
        "QSA_GROUP_SGLANG_PHASES": "draft, extend",
        "QSA_GROUP_SGLANG_BUFFERS": "all",
        "QSA_GROUP_SGLANG_VERIFY": "100",
        "QSA_GROUP_SGLANG_STATS": "7",
        "QSA_GROUP_SGLANG_BACKEND": "host",
        "QSA_GROUP_SGLANG_STRICT": "1",
    }
    assert set(others) == {variable.name for variable in VARIABLES}
    assert Settings.from_env(others) == Settings(
        mode="triton",
        phases=frozenset({"draft", "extend"}),
        buffers="all",
        verify_every=100,
        log_every=7,
        backend="host",
        strict=True,
    )


def test_every_variable_is_in_the_guide_as_the_code_has_it() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `QSA_GROUP_SGLANG_")]
    assert rows == [f"| `{v.name}` | {v.values} | {v.default} | {v.meaning} |" for v in VARIABLES]


def test_every_count_is_in_the_guide(plugin: Any) -> None:
    plugin()
    names = set(plugin_module.stats()) - {"mode", "backends", "buckets", "planners"}
    missing = [name for name in names if f"`{name}`" not in GUIDE.read_text()]
    assert not missing


def test_the_tested_releases_are_named() -> None:
    assert all(f"SGLang {release}" in GUIDE.read_text() for release in TESTED)


def test_diagnosis(plugin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plugin()
    text = "\n".join(plugin_module.diagnose())
    assert "this SGLang fits" in text
    assert "mode: recorded" in text
    assert "no CUDA device" in text or "started" in text
    monkeypatch.setenv("SGLANG_PLUGINS", "another")
    assert "loads the plugin" not in plugin_module.diagnose()[0]
    plugin_module.uninstall()
    monkeypatch.setenv("QSA_GROUP_SGLANG_MODE", "fast")
    assert "the plugin would stay out" in "\n".join(plugin_module.diagnose())
