"""The files that the command line is told to write: what is refused before any work, and what a failed write says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qsa_group import commands
from test_cli import QUICK, Call, call

__all__ = ["call"]  # The fixture.

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,50,20\n"


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a command reads, allocates or measures anything before it refuses the call."""

    def began(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    for name in ("read_workload", "read_rounds", "generate", "Server", "RoundRunner", "RoundWriter", "RoundSettings"):
        monkeypatch.setattr(commands, name, began)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input under several names; the working folder."""
    (tmp_path / "in.csv").write_text(TRACE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.png").symlink_to("in.csv")
    os.link(tmp_path / "in.csv", tmp_path / "hard.csv")
    (tmp_path / "door").symlink_to("sub")
    (tmp_path / "later").symlink_to("sub/new.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        (["demo", "--workload", "in.csv", "--json", "in.csv"], "--json has value in.csv", "--workload in.csv"),
        (["demo", "--workload", "in.csv", "--json", "sub/../in.csv"], "--json has value sub/../in.csv", "--workload"),
        (["demo", "--workload", "in.csv", "--plot", "link.png"], "--plot has value link.png", "--workload in.csv"),
        (["demo", "--workload", "link.png", "--record", "hard.csv"], "--record has value hard.csv", "--workload link"),
        (["replay", "in.csv", "--json", "hard.csv"], "--json has value hard.csv", "FILE in.csv"),
        (["replay", "in.csv", "--plot", "link.png"], "--plot has value link.png", "FILE in.csv"),
        (["demo", "--json", "new.json", "--record", "./new.json"], "--record has value ./new.json", "--json new.json"),
        (["demo", "--json", "sub/new.json", "--record", "later"], "--record has value later", "--json sub/new.json"),
        (["demo", "--json", "sub/a.png", "--plot", "door/a.png"], "--plot has value door/a.png", "--json sub/a.png"),
        (["demo", "--plot", "link.png", "--record", "hard.csv"], "--record has value hard.csv", "--plot link.png"),
        (["replay", "absent", "--json", "new.png", "--plot", "new.png"], "--plot has value new.png", "--json new.png"),
    ],
)
def test_a_file_that_is_used_twice_is_refused(
    call: Call, folder: Path, arguments: list[str], first: str, second: str
) -> None:
    before = sorted(os.listdir(folder))
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert first in err and second in err and "name another file" in err
    assert len(err.splitlines()) == 1
    assert (folder / "in.csv").read_text() == TRACE
    assert sorted(os.listdir(folder)) == before


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("command", [["demo"], ["replay", "rounds"], ["bench"]])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("sub", "--json has value sub, must be a file, not a folder"),
        ("door", "--json has value door, must be a file, not a folder"),
        ("new/", "--json has value new/, must be a file, not a folder"),
        ("", "--json has value '', must be a file, not a folder"),
        ("absent/x.json", "--json has value absent/x.json, must be in a folder that exists"),
        ("in.csv/x.json", "--json has value in.csv/x.json, must be a file that can be written: Not a directory"),
        ("x" * 300, "must be a file that can be written: File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(
    call: Call, folder: Path, command: list[str], path: str, words: str
) -> None:
    code, out, err = call(*command, "--json", path)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(("path", "at"), [("in.csv", "in.csv"), ("sub/x.json", "sub"), ("later", "sub")])
def test_a_place_without_permission_is_refused(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, at: str
) -> None:
    """Permissions as another user would find them: root may write everywhere."""
    asked = []

    def access(place: str, mode: int) -> bool:
        asked.append((os.path.relpath(place, folder), mode))
        return False

    monkeypatch.setattr(os, "access", access)
    code, out, err = call("demo", "--record", path)
    assert (code, out) == (2, "")
    assert f"--record has value {path}, must be writable" in err
    assert asked == [(at, os.W_OK | (os.X_OK if at == "sub" else 0))]


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("option", ["--record", "--plot"])
def test_only_json_goes_to_standard_output(call: Call, option: str) -> None:
    code, out, err = call("demo", option, "-")
    assert (code, out) == (2, "")
    assert f"{option} has value -, must be a file; only --json writes to standard output" in err


@pytest.mark.parametrize("command", ["demo", "replay", "bench"])
def test_json_on_standard_output(call: Call, folder: Path, command: str) -> None:
    rounds = folder / "rounds"
    assert call("demo", *QUICK, "--record", rounds)[0] == 0
    arguments = {
        "demo": ["demo", *QUICK],
        "replay": ["replay", rounds, "--device", "cpu", "--quiet"],
        "bench": ["bench", "--device", "cpu", "--batch", 1, "--repeats", 3],
    }[command]
    code, out, err = call(*arguments, "--json", "-")
    assert code == 0
    assert json.loads(out)["backend"] == "host"
    assert ("ratio" if command == "bench" else "mismatches: 0") in err
    assert not (folder / "-").exists()
    assert call(*arguments, "--json", "./-")[0] == 0
    assert json.loads((folder / "-").read_text())["backend"] == "host"


def test_a_device_may_be_named_twice(call: Call, folder: Path) -> None:
    assert call("demo", *QUICK, "--json", os.devnull, "--record", os.devnull)[0] == 0


def test_a_file_is_replaced(call: Call, folder: Path) -> None:
    path = folder / "result.json"
    path.write_text("x" * 1_000_000)
    assert call("demo", *QUICK, "--json", path)[0] == 0
    assert json.loads(path.read_text())["mismatches"] == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
class TestFullDisk:
    @pytest.mark.parametrize(("option", "name"), [("--json", "full"), ("--record", "full"), ("--record", "full.gz")])
    def test_a_failed_write_names_the_file(self, call: Call, folder: Path, option: str, name: str) -> None:
        (folder / name).symlink_to("/dev/full")
        code, out, err = call("demo", *QUICK, option, name)
        assert code == 2
        assert ("mismatches: 0" in out) == (option == "--json"), "what was found out is still told"
        words = f"cannot write {'--json ' * (option == '--json')}{name}: No space left on device; name a file elsewhere"
        assert err == f"qsa-group: {words}\n"

    def test_a_failed_picture_names_the_file(self, call: Call, folder: Path) -> None:
        pytest.importorskip("matplotlib")
        (folder / "full.png").symlink_to("/dev/full")
        code, _, err = call("demo", *QUICK, "--plot", "full.png")
        assert code == 2
        assert "cannot write the picture full.png: No space left on device" in err

    @pytest.mark.parametrize("arguments", [["explain", "--device", "cpu"], ["explain", "--example"], ["demo", *QUICK]])
    def test_standard_output(self, arguments: list[str]) -> None:
        """Once, and not as the interpreter's own failure at exit, code 120."""
        with open("/dev/full", "w") as full:
            ran = program(*arguments, stdout=full)
        assert ran.returncode == 2
        assert ran.stderr.startswith("qsa-group: cannot write standard output: No space left on device")
        assert ran.stderr.count("\n") == 1


def program(*arguments: str, stdout: Any = subprocess.PIPE, closed: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command line as a program, with some of its streams closed if asked for (`2>&-`)."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m qsa_group "$@" {closed}', sys.executable, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


def test_closed_streams() -> None:
    """What nobody hears is not said, and no other stream gets it."""
    without_errors = program("demo", *QUICK[:-1], "--json", "-", closed="2>&-")
    assert without_errors.returncode == 0
    assert json.loads(without_errors.stdout)["mismatches"] == 0
    without_output = program("demo", *QUICK, closed=">&-")
    assert (without_output.returncode, without_output.stderr) == (0, "")
    refused = program("demo", *QUICK, "--json", "-", closed=">&-")
    assert (refused.returncode, refused.stderr) == (
        2,
        "qsa-group: --json has value -, but standard output is closed; name a file\n",
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_results_outlast_a_report_that_cannot_be_written() -> None:
    ran = program("demo", *QUICK, "--json", "-", closed="2>/dev/full")
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["mismatches"] == 0


def test_the_file_of_standard_error_is_refused(folder: Path) -> None:
    ran = program("demo", *QUICK, "--record", "log", closed="2>log")
    assert ran.returncode == 2
    words = "--record has value log, must be another file than the one that standard error goes to"
    assert words in (folder / "log").read_text()


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("arguments", [["demo", "--workload"], ["replay"], ["explain"]], ids=" ".join)
def test_an_input_without_an_end_is_refused(call: Call, arguments: list[str]) -> None:
    code, _, err = call(*arguments, "/dev/zero")
    assert code == 2
    assert "has value /dev/zero, must be a file or a pipe, not a device" in err


def test_the_pipe_of_standard_output_is_refused() -> None:
    ran = program("demo", *QUICK, "--json", "/dev/stdout")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pass --json -" in ran.stderr


def test_the_file_of_standard_output_is_refused(folder: Path) -> None:
    """The report of the same run would overwrite it."""
    with open(folder / "out.json", "w") as out:
        ran = program("demo", *QUICK, "--json", "out.json", stdout=out)
    assert ran.returncode == 2
    assert "must be another file than the one that standard output goes to" in ran.stderr
    assert "pass --json -" in ran.stderr
