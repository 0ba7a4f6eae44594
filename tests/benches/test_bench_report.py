"""Ratios, targets and plots of results that are made up here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

BENCHES = Path(__file__).resolve().parents[2] / "benches"


@pytest.fixture(autouse=True)
def _benches_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHES))


def timed(median: float) -> dict[str, float]:
    return {"median": median, "p10": median, "p90": median, "samples": 3}


def made_up_row(batch: int, **host: list[float]) -> dict[str, Any]:
    """A row of the launch bench. The second of three turns gives the median."""
    return {
        "mode": "decode",
        "batch": batch,
        "steps": 2,
        "context": 256 * 1024,
        "live": 8 * 1024,
        "errors": {},
        "ratios": {},
        "host_us": {name: timed(turns[1]) for name, turns in host.items()},
        "host_turns": host,
        "gpu_us": {"ours": timed(2.0), "sglang_fused": timed(4.0), "empty": timed(1.0)},
    }


def test_host_ratios_compare_times_of_one_turn() -> None:
    from grid.ratios import add_ratios

    # The machine halved its speed after the first turn: the turns' ratios are 1.5, 1.5 and 1.6.
    row = made_up_row(8, direct=[1.5, 3.0, 3.2], bare=[1.0, 2.0, 2.0])
    add_ratios(row)
    assert row["ratios"]["direct/bare"] == 1.5
    assert row["ratios"]["gpu/fused"] == 0.5
    assert row["ratios"]["gpu/empty"] == 2.0
    assert "direct/fused" not in row["ratios"]


def test_targets_name_the_worst_point() -> None:
    from grid.ratios import add_ratios
    from grid.targets import verdicts

    rows = [made_up_row(8, direct=[1.2] * 3, bare=[1.0] * 3), made_up_row(64, direct=[1.4] * 3, bare=[1.0] * 3)]
    for row in rows:
        add_ratios(row)
    verdict = verdicts("decode", rows)[0]
    assert (verdict["points"], verdict["met"], verdict["pass"]) == (2, 1, False)
    assert (verdict["worst"], verdict["worst_at"]) == (1.4, "bs 64 steps 2 256K/8K")


def test_a_missing_column_is_empty_and_no_failure() -> None:
    from grid.ratios import add_ratios
    from grid.report import closing, header, line

    row = made_up_row(8, direct=[1.2] * 3)
    add_ratios(row)
    text = closing("decode", [row])
    assert "no data host direct / bare" in text
    # One cell a column behind the point's five words, then the mark of values that were not compared.
    cells, columns = line(row).split()[5:], header().split()[2:]
    assert cells[:2] == ["1.20", "-"]
    assert cells[len(columns) :] == ["?"]


def test_an_error_of_many_points_is_told_once() -> None:
    from grid.report import closing

    rows = [made_up_row(batch, direct=[1.0] * 3) for batch in (1, 8)]
    for row in rows:
        row["errors"]["triton"] = "UnsupportedError: no kernel"
    assert "error at 2 points (first bs 1 steps 2 256K/8K): triton: UnsupportedError: no kernel" in closing(
        "decode", rows
    )


def test_a_stored_result_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    import plot

    rows = [made_up_row(batch, direct=[1.0] * 3, bare=[0.9] * 3) for batch in (1, 8)]
    result = {"mode": "decode", "environment": {"torch": "2"}, "rows": rows}
    (tmp_path / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr("sys.argv", ["plot.py", str(tmp_path / "result.json"), str(tmp_path / "plot.png")])
    plot.main()
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
