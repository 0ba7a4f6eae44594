"""The commands of benches/ that need no GPU: they run, and their results have the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qsa_group

BENCHES = Path(__file__).resolve().parents[2] / "benches"
INSTALLED = Path(qsa_group.__file__).parents[1]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(INSTALLED), "TRITON_INTERPRET": "0"}
    script, *options = map(str, arguments)
    return subprocess.run(
        [sys.executable, BENCHES / script, *options], capture_output=True, text=True, env=environment, timeout=300
    )


def result_of(path: Path) -> Any:
    return json.loads(path.read_text())


def test_stub_measures_calls_without_a_gpu() -> None:
    done = command("launch.py", "--stub", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(point["batch"], point["steps"]) for point in result["points"]] == [(64, 2), (1, 2), (64, 7)]
    assert result["rust_call_us"] == result["points"][0]["rust_call_us"]["median"] > 0
    # A released wheel has no empty call, and the bench says so in one line.
    missing = result["bare_call_us"] is None
    assert missing == (not hasattr(qsa_group._core, "noop"))
    assert ("Cargo feature `bench`" in done.stderr) == missing


def test_memory_counts_runs_with_a_stub(tmp_path: Path) -> None:
    done = command("memory.py", "--stub", "--calls", 2000, "--warm-calls", 100, "--json", tmp_path / "memory.json")
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path / "memory.json")
    # Batches of 1 to 64 requests: every call is a run.
    assert result["calls"] == result["runs"] == 2000
    assert result["backend"] == "direct (stub)"
    assert result["compiles"] == 0
    assert len(result["resident_mib"]) == 11


@pytest.mark.slow
def test_two_versions_take_turns(tmp_path: Path) -> None:
    """The package against itself."""
    options = ("--batches", 3, "--starts", 3, "--json", tmp_path / "against.json")
    done = command("launch.py", "--stub", "--against", INSTALLED, *options)
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path / "against.json")
    assert result["ours"] == result["other"]
    assert len(result["rows"]) == 2
    for row in result["rows"]:
        assert row["errors"] == {}
        ours, other = row["ours"]["host_us"], row["other"]["host_us"]
        assert ours["samples"] == other["samples"] == 3
        assert row["ratios"] == {"host": pytest.approx(ours["median"] / other["median"], abs=1e-4)}
    assert result["summary"]["host"]["worst"] == max(row["ratios"]["host"] for row in result["rows"])


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    done = command("launch.py", "--stub", "--against", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr


@pytest.mark.slow
def test_a_version_that_does_not_import_ends_the_bench(tmp_path: Path) -> None:
    (tmp_path / "qsa_group").mkdir()
    (tmp_path / "qsa_group" / "__init__.py").write_text("raise ImportError('broken')\n")
    done = command("launch.py", "--stub", "--against", tmp_path)
    assert done.returncode == 1
    assert f"the process with {tmp_path} ended with code 1" in done.stderr
