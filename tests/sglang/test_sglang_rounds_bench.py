"""benches/sglang_rounds.py without a GPU: every section runs, and every value is SGLang's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import qsa_group

SCRIPT = Path(__file__).resolve().parents[2] / "benches" / "sglang_rounds.py"


def test_dry_run(tmp_path: Path) -> None:
    options = ["--dry-run-cpu", "--rounds", "20", "--samples", "4", "--max-batch", "8", "--context", "4096"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *options, "--sections", "stall,values,host,round", "--json", tmp_path / "rounds.json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(qsa_group.__file__).parents[1])},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "rounds.json").read_text())
    assert result["environment"]["loaded_by"].startswith(("SGLang's", "install()"))
    for name, values in result["values"].items():
        assert values["refreshes_differing"] == 0, name
        # Three refreshes a round, none of them SGLang's.
        assert values["recorded"] + values["launched"] == 3 * values["rounds"]
        assert values["left_to_sglang"] == 0
