"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import command_line
from helpers.command_line import QUICK, call
from qsa_group import LaunchError, ReplayPlan, __version__
from qsa_group.cli import demo, main


def test_the_demo_checks_itself_and_says_where_it_ran(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    code, out, err = call("demo", *QUICK, "--json", path)
    assert (code, err) == (0, "")
    for words in ("mismatches: 0", "backend host, device cpu", f"qsa_group {__version__}", "draft steps", "plan cache"):
        assert words in out
    result = json.loads(path.read_text())
    assert result["requests"]["finished"] == 12
    assert result["rounds"] > 20
    assert result["checked_refreshes"] == 3 * result["rounds"]
    assert result["step_by_step"]["decode"] == 2 * result["launches"]["decode"]
    assert [segment["label"] for segment in result["timeline"]["grouped"]["segments"]] == [
        "draft 1-2",
        "verify",
        "extend",
    ]


def test_a_workload_and_limits(tmp_path: Path) -> None:
    trace = tmp_path / "tiny.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,50,20\n0.1,300,9\n9,17,40\n9,9000,5\n")
    common = ["demo", "--device", "cpu", "--workload", trace, "--context", 1024, "--steps", 1]
    code, out, _ = call(*common)
    assert code == 0
    assert "tiny.csv, 4 requests" in out
    assert "3 answered with 69 tokens" in out
    assert "1 refused (prompt longer than the context)" in out
    code, out, _ = call(*common, "--requests", 2, "--rounds", 3)
    assert code == 0
    assert "tiny.csv, 2 requests" in out
    assert "not answered (round limit)" in out


def test_generated_traffic_and_its_seed(tmp_path: Path) -> None:
    def answered(*arguments: object) -> str:
        code, out, _ = call("demo", *QUICK, *arguments)
        assert code == 0
        assert "12 generated requests with the statistics of the conversation trace, arriving 4 times as fast" in out
        return next(line for line in out.splitlines() if line.startswith("requests"))

    assert answered() == answered("--seed", 0) != answered("--seed", 1)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("demo", *QUICK, "--rounds", 3)[2] == ""
    clock = iter(range(100_000))
    monkeypatch.setattr("qsa_group.cli.serving.time.perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(command_line, "StringIO", Terminal)
    code, _, err = call("demo", *QUICK)
    assert code == 0
    assert "of 12 requests, round" in err
    assert "0 mismatches" in err
    assert err.endswith("\r" + " " * 78 + "\r"), "the line is taken away"


def test_a_mismatch_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ReplayPlan.run

    def wrong(plan: ReplayPlan, *inputs: Any) -> None:
        right(plan, *inputs)
        if plan.mode == "decode":
            plan.steps[0].sequence_lengths[0] += 1

    monkeypatch.setattr(ReplayPlan, "run", wrong)
    code, out, _ = call("demo", *QUICK, "--rounds", 2)
    assert code == 1
    assert "mismatches: 2" in out
    assert "round 1, decode, bucket 1: step 0: sequence_lengths[0] is" in out


@pytest.mark.parametrize("name", ["rounds.jsonl", "rounds.jsonl.gz"])
def test_recorded_rounds_are_checked_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    code, first, _ = call("demo", *QUICK, "--record", path, "--index-sharing")
    assert code == 0
    code, again, _ = call("replay", path, "--device", "cpu")
    assert code == 0
    for text in (first, again):
        assert "mismatches: 0" in text
        assert "draft steps share indices" in text
    counts = [next(line for line in text.splitlines() if line.startswith("rounds")).split() for text in (first, again)]
    assert counts[0] == counts[1]
    assert call("replay", path, "--device", "cpu", "--rounds", 2)[0] == 0


def test_a_record_of_the_first_rounds_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl.gz"
    assert call("demo", *QUICK, "--record", path, "--rounds", 3)[0] == 0
    code, out, _ = call("replay", path, "--device", "cpu")
    assert code == 0
    assert "3; 9 refreshes" in out


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "demo.png"
    code, out, _ = call("demo", *QUICK, "--plot", picture)
    assert code == 0
    assert f"picture: {picture}" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_doctor() -> None:
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    for words in (f"qsa_group: {__version__}", "backends on cpu", "host: works", "direct: not here.", "SGLang plugin"):
        assert words in out
    assert "nothing is broken" in out


def test_the_doctor_reports_a_backend_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayPlan, "run", lambda *_: None)
    code, out, _ = call("doctor")
    assert code == 1
    assert "host on cpu: RuntimeError: a refresh gave lengths [-1, -1] instead of [8, 10]" in out
    assert "nothing is broken" not in out


def test_explain(tmp_path: Path) -> None:
    code, out, _ = call("explain", "--device", "cpu")
    assert code == 0
    assert "page_table" in out
    code, example, _ = call("explain", "--example")
    assert code == 0
    path = tmp_path / "layouts.json"
    path.write_text(example)
    code, again, _ = call("explain", path, "--device", "cpu")
    assert (code, again) == (0, out)
    code, data, _ = call("explain", path, "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(data)["groups"] == [[0, 1], [2], [3]]


@pytest.mark.parametrize(
    ("description", "groups"),
    [
        ({"steps": [{}, {}, {}]}, [[0, 1, 2]]),
        ({"steps": [{}, {"rows": 4}]}, [[0], [1]]),
        ({"mode": "target_verify", "draft_token_num": 2}, [[0]]),
        ({"mode": "draft_extend", "absent": ["page_table"]}, [[0]]),
        ({"absent": ["page_table"], "steps": [{}, {"absent": []}]}, [[0], [1]]),
        ({"rows": 1 << 20, "max_pages": 1}, [[0]]),
        ({"steps": [{"offset": 0}]}, [[0]]),
        ({"steps": [{"offset": 1 << 29}]}, [[0]]),
    ],
)
def test_described_layouts(tmp_path: Path, description: dict[str, Any], groups: list[list[int]]) -> None:
    path = tmp_path / "layouts.json"
    path.write_text(json.dumps(description))
    code, out, err = call("explain", path, "--device", "cpu", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["groups"] == groups


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read the description"),
        ("[]", "must hold a JSON object; 'qsa-group explain --example' prints one"),
        ("[" * 100_000, "cannot read the description"),
        ('{"step": []}', "unknown step; known are"),
        ('{"steps": 3}', "steps must be a list of objects; give one object a step"),
        ('{"steps": []}', "steps"),
        ('{"mode": "decoed"}', 'mode has value "decoed", must be "decode"'),
        ('{"mode": []}', "mode has type list, must be str"),
        ('{"rows": -1}', "the description: rows has value -1, must be a whole number; give one"),
        ('{"rows": 1048577, "max_pages": 1}', "rows needs 1048577, the limit is 1048576; split the bucket"),
        ('{"rows": 99999999999}', "entries, must have at most 268435456; lower compress_ratio, page_size, slots"),
        ('{"rows": 1.0}', "rows has value 1.0, must be a whole number"),
        ('{"steps": [{}, {"rows": true}]}', "steps[1]: rows has value True, must be a whole number"),
        ('{"steps": [{"offset": -1}]}', "step 0: offset has value -1, must be from 0 to 536870912; "),
        ('{"steps": [{"offset": "a"}]}', "step 0: offset has type str, must be an int from 0 to 536870912; "),
        ('{"width": 2000000000}', "entries, must have at most 268435456"),
        ('{"width": 0}', "req_to_token has shape [65, 0], must be at least [1, 1]"),
        ('{"slots": 1, "rows": 1048576, "max_pages": 256}', "entries, must have at most 268435456"),
        ('{"compress_ratio": 1000000000, "page_size": 1000000000}', "entries, must have at most 268435456"),
        ('{"rows": 1000000, "steps": [{}, {}]}', "entries, must have at most 268435456"),
        ('{"draft_token_num": 4}', "draft_token_num has value 4, must be None"),
        ('{"mode": "target_verify", "draft_token_num": 0}', "draft_token_num has value 0, must be from 1"),
        ('{"steps": [{"absent": ["pages"]}]}', "steps[0], absent: unknown pages"),
        ('{"steps": [{"absent": 4}]}', "steps[0], absent has value 4, must be a list"),
        ('{"steps": [{"absent": [[]]}]}', "steps[0], absent: unknown []"),
        ('{"page_size": 6}', "page_size has value 6, must be a multiple of compress_ratio 4"),
    ],
)
def test_a_bad_description_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "layouts.json"
    path.write_text(text)
    code, out, err = call("explain", path, "--device", "cpu")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_bench(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    code, out, err = call(
        "bench", "--device", "cpu", "--batch", 1, 3, "--live", 500, "--context", 1024, "--repeats", 5, "--json", path
    )
    assert (code, err) == (0, "")
    assert "ratio" in out
    result = json.loads(path.read_text())
    assert [line["batch"] for line in result["bench"]] == [1, 3]
    assert result["bench"][0]["grouped"]["launches"] == 3


def test_the_largest_bucket_of_a_bench() -> None:
    common = ["bench", "--device", "cpu", "--repeats", 1, "--live", 100, "--context", 256, "--json", "-"]
    for arguments, most in ((["--batch", 3], 64), (["--batch", 70, 2], 70), (["--batch", 3, "--max-batch", 3], 3)):
        code, out, _ = call(*common, *arguments)
        assert code == 0
        assert json.loads(out)["settings"]["max_batch"] == most


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--workload", "absent.csv"], "cannot read the workload 'absent.csv': No such file"),
        (["demo", "--workload", ""], "cannot read the workload ''"),
        (["demo", "--device", "cuda:99"], "--device has value cuda:99, must be one of cpu"),
        (["demo", "--device", "toaster"], "--device has value toaster, must be one of cpu"),
        (["demo", "--device", "meta"], "--device has value meta, must be one of cpu"),
        (["demo", "--backend", "direct", "--device", "cpu"], "direct"),
        (["demo", "--backend", "warp"], "invalid choice"),
        (["demo", "--page-size", "6"], "page_size has value 6, must be a multiple of compress_ratio 4"),
        (["demo", "--context", "3"], "context has value 3, must be above the 4 draft tokens"),
        (
            ["demo", "--requests", "16777217"],
            "--requests: '16777217' is not a whole number from 1 to 16777216",
        ),
        (
            ["demo", "--max-batch", "1000", "--context", "1000000", "--page-size", "4"],
            "and 2500040000 entries, must have fewer than 2147483648 each, with max_batch 1000",
        ),
        (["demo", "--steps", "0"], "'0' is not a whole number from 1 to"),
        (["demo", "--context", "many"], "'many' is not a whole number from 1 to"),
        (["demo", "--max-batch", "1000000"], "request table and buffers have"),
        (["replay", "absent.gz"], "absent.gz: cannot be read: No such file"),
        (["explain", ""], "cannot read the description"),
        (["explain", "--example", "absent.json"], "not allowed with argument"),
        (["bench", "--live", "16384"], "--live has value 16384, must be at most 16380"),
        (["fly"], "invalid choice"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_call_is_explained(arguments: list[str], words: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 2, "out of memory; lower --max-batch, --context"),
        (torch.OutOfMemoryError("CUDA out of memory"), 2, "out of memory; lower --max-batch, --context"),
        (LaunchError("the driver refused"), 1, "the driver refused"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(demo, "RoundRunner", fail)
    got, out, err = call("demo", *QUICK)
    assert (got, out) == (code, "")
    assert err.startswith(f"qsa-group: {words}")
    assert len(err.splitlines()) == 1


def test_the_hosts_allocator_has_no_type_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "RoundRunner", lambda *_, **__: torch.empty(1 << 50, dtype=torch.uint8))
    assert call("demo", *QUICK)[::2] == (
        2,
        "qsa-group: out of memory; lower --max-batch, --context, --steps or --requests, or describe less\n",
    )


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of this package")

    monkeypatch.setattr(demo, "RoundRunner", fail)
    with pytest.raises(RuntimeError, match="a fault of this package"):
        call("demo", *QUICK)


def test_help_of_every_command() -> None:
    code, out, _ = call("--help")
    assert code == 0
    for name in ("demo", "replay", "doctor", "explain", "bench"):
        assert name in out
        code, text, _ = call(name, "--help")
        assert code == 0
        assert "usage: qsa-group " + name in text


def test_entry_points() -> None:
    (script,) = (point for point in metadata.entry_points(group="console_scripts") if point.name == "qsa-group")
    assert script.load() is main
    plugins = metadata.entry_points(group="sglang.srt.plugins")
    assert [point.value for point in plugins if point.name == "qsa_group"] == ["qsa_group.sglang:register"]


def test_it_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "qsa_group", "--version"], capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout == f"qsa-group {__version__}\n"


def test_a_demo_that_checked_nothing_fails() -> None:
    """No request fits, so no round ran: that is no success."""
    code, _, err = call("demo", "--requests", "3", "--context", "10", "--device", "cpu")
    assert code == 1
    assert "nothing was checked" in err
