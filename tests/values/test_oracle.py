"""The oracle itself, against the handed cases."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import oracle
from helpers.cases import CASES, case_of


@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_oracle_gives_the_handed_values(handed: dict[str, Any]) -> None:
    outcome = oracle.refresh(case_of(handed))
    assert len(outcome.steps) == len(handed["expected"])
    for step, (got, wanted) in enumerate(zip(outcome.steps, handed["expected"], strict=True)):
        for name in oracle.FIELDS:
            if name == "page_table":
                assert got.live == wanted["page_table_live"], f"step {step}: page_table"
            else:
                assert got.values[name] == wanted[name], f"step {step}: {name}"


def test_every_mode_and_every_kind_of_row_is_among_the_cases() -> None:
    assert {handed["mode"] for handed in CASES} == set(oracle.MODES)
    seen = 0
    for handed in CASES:
        seen |= oracle.refresh(case_of(handed)).status
    assert seen == oracle.SLOT_OUT_OF_TABLE | oracle.LENGTH_EXCEEDS_TABLE | oracle.ROWS_EXCEED_BUCKET
