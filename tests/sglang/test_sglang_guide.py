"""The guide says what the code does."""

from __future__ import annotations

from pathlib import Path

from qsa_group.sglang.diagnosis import TESTED
from qsa_group.sglang.settings import VARIABLES

GUIDE = Path(__file__).parents[2] / "docs" / "sglang.md"


def test_every_switch_is_in_the_guide_as_the_code_has_it() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `QSA_GROUP_SGLANG_")]
    assert rows == [f"| `{v.name}` | {v.values} | {v.default} | {v.meaning} |" for v in VARIABLES]


def test_the_tested_releases_are_named() -> None:
    assert all(f"SGLang {release}" in GUIDE.read_text() for release in TESTED)
