"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from qsa_group import ReplayPlan, __version__, commands
from qsa_group.cli import main

QUICK = ["--device", "cpu", "--backend", "host", "--requests", "12", "--max-batch", "8", "--quiet"]
Call = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command line in this process; returns exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_demo_checks_itself_and_says_where_it_ran(call: Call, tmp_path: Path) -> None:
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


def test_a_workload_and_limits(call: Call, tmp_path: Path) -> None:
    trace = tmp_path / "tiny.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,50,20\n0.1,300,9\n9,17,40\n9,9000,5\n")
    common = ["demo", "--device", "cpu", "--workload", trace, "--context", 1024, "--steps", 1, "--quiet"]
    code, out, _ = call(*common)
    assert code == 0
    assert "tiny.csv, 4 requests" in out
    assert "3 answered with 69 tokens" in out
    assert "1 refused (prompt longer than the context)" in out
    code, out, _ = call(*common, "--requests", 2, "--rounds", 3, "--speed", 10)
    assert code == 0
    assert "tiny.csv, 2 requests, arriving 10 times as fast" in out
    assert "not answered (round limit)" in out


def test_progress_is_shown(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100_000))
    monkeypatch.setattr("qsa_group.progress.time.monotonic", lambda: float(next(clock)))
    code, _, err = call("demo", *[argument for argument in QUICK if argument != "--quiet"])
    assert code == 0
    assert "of 12 requests, round" in err
    assert "0 mismatches" in err


def test_a_mismatch_fails_the_demo(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ReplayPlan.run

    def wrong(plan: ReplayPlan, *inputs: Any) -> None:
        right(plan, *inputs)
        if plan.mode == "decode":
            plan.steps[0].sequence_lengths[0] += 1

    monkeypatch.setattr(ReplayPlan, "run", wrong)
    code, out, _ = call("demo", *QUICK, "--rounds", 2)
    assert code == 1
    assert "mismatches: 2" in out
    assert "round 1, decode, bucket 1: step 0 sequence_lengths[0] is" in out


@pytest.mark.parametrize("name", ["rounds.jsonl", "rounds.jsonl.gz"])
def test_recorded_rounds_are_checked_again(call: Call, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    code, first, _ = call("demo", *QUICK, "--record", path, "--index-sharing")
    assert code == 0
    code, again, _ = call("replay", path, "--device", "cpu", "--quiet")
    assert code == 0
    for text in (first, again):
        assert "mismatches: 0" in text
        assert "draft steps share indices" in text
    counts = [next(line for line in text.splitlines() if line.startswith("rounds")).split() for text in (first, again)]
    assert counts[0] == counts[1]
    assert call("replay", path, "--device", "cpu", "--quiet", "--rounds", 2)[0] == 0


def test_a_picture_is_drawn(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "demo.png"
    code, out, _ = call("demo", *QUICK, "--plot", picture)
    assert code == 0
    assert f"picture: {picture}" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_doctor(call: Call) -> None:
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    for words in (f"qsa_group: {__version__}", "backends on cpu", "host: works", "direct: not here.", "SGLang plugin"):
        assert words in out
    assert "nothing is broken" in out


def test_the_doctor_reports_a_backend_that_fails(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayPlan, "run", lambda *_: None)
    code, out, _ = call("doctor")
    assert code == 1
    assert "host on cpu: RuntimeError: a refresh gave lengths [-1, -1] instead of [8, 10]" in out


def test_explain(call: Call, tmp_path: Path) -> None:
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
        ({"steps": [{}, {"same": {"write_locs": 0}}]}, [[0], [1]]),
        ({"mode": "target_verify", "draft_token_num": 2}, [[0]]),
        ({"mode": "draft_extend", "absent": ["page_table"]}, [[0]]),
        ({"rows": 1 << 20, "max_pages": 1}, [[0]]),
        ({"steps": [{"offset": 0}]}, [[0]]),
        ({"steps": [{"offset": 1 << 29}]}, [[0]]),
    ],
)
def test_described_layouts(call: Call, tmp_path: Path, description: dict[str, Any], groups: list[list[int]]) -> None:
    path = tmp_path / "layouts.json"
    path.write_text(json.dumps(description))
    code, out, err = call("explain", path, "--device", "cpu", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["groups"] == groups


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read the description"),
        ("[]", "holds [], must hold a JSON object; 'qsa-group explain --example' prints one"),
        ("[" * 100_000, "cannot read the description"),
        ('{"step": []}', "unknown step; known are"),
        ('{"steps": 3}', "steps has value 3, must be a list of objects; give one object a step"),
        ('{"steps": []}', "steps"),
        ('{"mode": "decoed"}', 'mode has value "decoed", must be one of decode'),
        ('{"rows": 0}', "rows has value 0, must be a whole number from 1 to 1048576; give the rows of a step's"),
        ('{"rows": 99999999999}', "rows has value 99999999999, must be a whole number from 1 to 1048576; give the"),
        ('{"rows": 1.0}', "rows has value 1.0, must be a whole number"),
        ('{"steps": [{}, {"rows": true}]}', "steps[1]: rows has value true, must be a whole number from 1 to 1048576"),
        ('{"steps": [{"offset": -1}]}', "steps[0]: offset has value -1, must be a whole number from 0 to 536870912; "),
        ('{"steps": [{"offset": 536870913}]}', "steps[0]: offset has value 536870913, must be a whole number from 0"),
        ('{"width": 2000000000}', "width has value 2000000000, must be a whole number from 1 to 268435456; give the"),
        ('{"width": 8388608}', "slots and width have values 65 and 8388608, must be at most 268435456 multiplied"),
        ('{"rows": 1048576, "max_pages": 256}', "steps[0]: its buffers, with rows 1048576, max_pages 256 and "),
        ('{"compress_ratio": 1000000000, "page_size": 1000000000}', "and compress_ratio 1000000000, must have at most"),
        ('{"rows": 1000000, "steps": [{}, {}]}', "steps[1]: its buffers, with rows 1000000, max_pages 128 and"),
        ('{"draft_token_num": 4}', "draft_token_num has value 4, must be None"),
        ('{"mode": "target_verify", "draft_token_num": 0}', "draft_token_num has value 0, must be a whole number from"),
        ('{"steps": [{"absent": ["pages"]}]}', "steps[0], absent: unknown pages"),
        ('{"steps": [{"same": {"write_locs": 0}}]}', "steps[0]: same.write_locs has value 0, must be the number"),
        ('{"steps": [{}, {"absent": ["page_table"], "same": {"page_table": 0}}]}', "both in absent and in same"),
        ('{"steps": [{"absent": 4}]}', "steps[0]: absent has value 4, must be a list"),
        ('{"steps": [{"same": []}]}', "steps[0]: same has value [], must be an object"),
        ('{"page_size": 6}', "page_size"),
    ],
)
def test_a_bad_description_is_refused(call: Call, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "layouts.json"
    path.write_text(text)
    code, out, err = call("explain", path, "--device", "cpu")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_bench(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    code, out, err = call(
        "bench", "--device", "cpu", "--batch", 1, 3, "--live", 500, "--context", 1024, "--repeats", 5, "--json", path
    )
    assert (code, err) == (0, "")
    assert "ratio" in out
    result = json.loads(path.read_text())
    assert [line["batch"] for line in result["bench"]] == [1, 3]
    assert result["bench"][0]["grouped"]["launches"] == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--workload", "absent.csv"], "cannot read the workload absent.csv"),
        (["demo", "--device", "cuda:99"], "torch finds"),
        (["demo", "--device", "toaster"], "no such device"),
        (["demo", "--device", "meta"], "only cpu and cuda"),
        (["demo", "--backend", "direct", "--device", "cpu"], "direct"),
        (["demo", "--backend", "warp"], "invalid choice"),
        (["demo", "--page-size", "6"], "page_size 6 is not a multiple of compress_ratio 4"),
        (["demo", "--context", "3"], "leaves no room for 4 draft tokens"),
        (["demo", "--pages", "256"], "--pages has value 256, must be from 257 to 33554432; pass a number"),
        (["demo", "--pages", "33554433"], "--pages has value 33554433, must be from 257 to 33554432; pass a number"),
        (["demo", "--pages", "2147483648"], "argument --pages: '2147483648' is not a whole number from 1 to"),
        (["demo", "--requests", "1000001"], "--requests has value 1000001, must be from 1 to 1000000 where requests"),
        (["bench", "--repeats", "1000001"], "argument --repeats: '1000001' is not a whole number from 1 to 1000000"),
        (
            ["bench", "--batch", "100", "1", "--live", "1000000", "--context", "1000064", "--page-size", "4"],
            "--batch 100 with --live 1000000 and --page-size 4 has 25000100 live pages, must have at most 16777216;",
        ),
        (
            ["demo", "--max-batch", "1000", "--context", "1000000", "--page-size", "4"],
            "page tables and ring groups have 2500040000 entries, must have fewer than 2147483648, with max_batch 1000",
        ),
        (["demo", "--steps", "0"], "not a whole number from 1 to 2147483647"),
        (["demo", "--steps", "33"], "--steps has value 33, must be at most 32; lower it"),
        (["demo", "--context", "99999999"], "--context has value 99999999, must be at most 16777216"),
        (["bench", "--batch", "1", "500000"], "--batch has value 500000, must be at most 4096"),
        (["demo", "--speed", "nan"], "not a number above 0"),
        (["demo", "--acceptance", "2"], "not a number from 0 to 1"),
        (["demo", "--json", "/absent/folder/x.json"], "must be in a folder that exists, which /absent/folder does not"),
        (["demo", "--plot", "demo.txt"], "its name must end in .png, .svg, .pdf"),
        (["demo", "--plot", "/absent/folder/x.png"], "--plot has value /absent/folder/x.png, must be in a folder"),
        (["demo", "--record", "/absent/folder/x.gz"], "--record has value /absent/folder/x.gz, must be in a folder"),
        (["replay", "absent.gz"], "cannot open absent.gz"),
        (["bench", "--live", "16384"], "exceed --context 16384"),
        (["fly"], "invalid choice"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_call_is_explained(call: Call, arguments: list[str], words: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["demo", "--workload", "absent.csv", "--traffic", "conversation"],
            "--traffic conversation has no effect with --workload",
        ),
        (["explain", "--example", "absent.json"], "FILE absent.json has no effect with --example"),
        (["explain", "--example", "--json"], "--json has no effect with --example"),
        (["explain", "--example", "--backend", "auto"], "--backend auto has no effect with --example"),
        (["explain", "--example", "--device", "cpu"], "--device cpu has no effect with --example"),
        (["bench", "--max-batch", "7"], "--max-batch has value 7, must be at least the largest --batch, 64; raise it"),
        (["bench", "--max-batch", "7", "--batch", "8", "2"], "must be at least the largest --batch, 8; raise it"),
        (["explain", ""], "cannot read the description"),
        (["demo", "--workload", ""], "cannot read the workload"),
    ],
)
def test_nothing_that_is_passed_is_ignored(call: Call, arguments: list[str], words: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_the_largest_bucket_of_a_bench(call: Call) -> None:
    common = ["bench", "--device", "cpu", "--repeats", 1, "--live", 100, "--context", 256, "--json", "-"]
    for arguments, most in ((["--batch", 3], 64), (["--batch", 70, 2], 70), (["--batch", 3, "--max-batch", 3], 3)):
        code, out, _ = call(*common, *arguments)
        assert code == 0
        assert json.loads(out)["settings"]["max_batch"] == most


@pytest.mark.parametrize("traffic", [None, "conversation", "code"])
def test_traffic_is_generated_as_asked(call: Call, traffic: str | None) -> None:
    code, out, _ = call("demo", *QUICK, "--rounds", 2, *(["--traffic", traffic] if traffic else []))
    assert code == 0
    assert f"with the statistics of the {traffic or 'conversation'} trace" in out


def test_as_many_requests_as_can_be_generated(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(commands, "generate", lambda count, **_: asked.append(count) or [])
    call("demo", *QUICK, "--requests", 1_000_000)
    assert asked == [1_000_000]


def too_large() -> None:
    torch.empty(1 << 50, dtype=torch.uint8)  # The host's allocator: a plain RuntimeError.


def too_large_for_python() -> None:
    raise MemoryError


def too_large_for_the_device() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("fail", [too_large, too_large_for_python, too_large_for_the_device])
def test_out_of_memory_names_what_takes_it(
    call: Call, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    monkeypatch.setattr(commands, "RoundRunner", lambda *_, **__: fail())
    code, out, err = call("demo", "--device", "cpu", "--pages", 999, "--requests", 5)
    assert (code, out) == (2, "")
    assert err == (
        "qsa-group: out of memory with --requests 5, --pages 999, --steps 2, --context 16384, --page-size 64, "
        "--compress-ratio 4; lower what is large, or describe less\n"
    )
    code, out, err = call("bench", "--device", "cpu", "--batch", 3, 5)
    assert code == 2
    assert "out of memory with --max-batch 64, --batch 3 5, --live 8192, --steps 2, " in err


def test_other_errors_are_not_taken_for_a_lack_of_memory(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of this package")

    monkeypatch.setattr(commands, "RoundRunner", fail)
    with pytest.raises(RuntimeError, match="a fault of this package"):
        call("demo", *QUICK)


def test_help_of_every_command(call: Call) -> None:
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


def test_a_demo_that_checked_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """No request fits, so no round ran: that is no success."""
    assert main(["demo", "--quiet", "--requests", "3", "--context", "10", "--device", "cpu"]) == 1
    assert "nothing was checked" in capsys.readouterr().err
