"""The files that the command line writes, and standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.command_line import QUICK, call
from qsa_group.cli import bench, demo, replay

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,50,20\n"
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a command reads, allocates or measures anything before it refuses the call."""

    def began(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    for module in (demo, replay, bench):
        monkeypatch.setattr(module, "RoundRunner", began)
    for module, name in ((demo, "read_workload"), (demo, "generate"), (demo, "Server"), (replay, "read_rounds")):
        monkeypatch.setattr(module, name, began)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an input under two names; the working folder."""
    (tmp_path / "in.csv").write_text(TRACE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.png").symlink_to("in.csv")
    (tmp_path / "later").symlink_to("sub/new.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--workload", "in.csv", "--json", "in.csv"], "--json has value in.csv, which --workload names too"),
        (["demo", "--workload", "in.csv", "--json", "sub/../in.csv"], "--json has value sub/../in.csv, which --workl"),
        (["demo", "--workload", "in.csv", "--plot", "link.png"], "--plot has value link.png, which --workload names"),
        (["replay", "in.csv", "--plot", "link.png"], "--plot has value link.png, which FILE names too"),
        (["demo", "--json", "new.json", "--record", "./new.json"], "--json has value new.json, which --record names"),
        (["demo", "--json", "sub/new.json", "--record", "later"], "--json has value sub/new.json, which --record"),
        (
            ["replay", "absent", "--json", "new.png", "--plot", "new.png"],
            "--plot has value new.png, which --json",
        ),
    ],
)
def test_a_file_that_is_used_twice_is_refused(folder: Path, arguments: list[str], words: str) -> None:
    before = sorted(os.listdir(folder))
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.endswith("; name another file\n")
    assert len(err.splitlines()) == 1
    assert (folder / "in.csv").read_text() == TRACE
    assert sorted(os.listdir(folder)) == before


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("command", [["demo"], ["replay", "rounds"], ["bench"]])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("sub", "'sub': Is a directory"),
        ("", "'': No such file or directory"),
        ("absent/x.json", "'absent/x.json': No such file or directory"),
        ("in.csv/x.json", "'in.csv/x.json': Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_file_that_cannot_be_written_is_refused(command: list[str], path: str, words: str) -> None:
    code, out, err = call(*command, "--json", path)
    assert (code, out) == (2, "")
    assert err.startswith("qsa-group: cannot write --json '")
    assert words in err
    assert err.endswith("; name a file that can be written\n")
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize("option", ["--record", "--plot"])
@pytest.mark.usefixtures("folder")
def test_every_output_is_tried(option: str) -> None:
    code, _, err = call("demo", option, "absent/x.png")
    assert code == 2
    assert f"cannot write {option} 'absent/x.png': No such file or directory" in err


@pytest.mark.usefixtures("_no_work", "folder")
def test_a_picture_of_an_unknown_kind_is_refused() -> None:
    pytest.importorskip("matplotlib")
    code, _, err = call("demo", "--plot", "demo.txt")
    assert code == 2
    assert "--plot has value demo.txt, must end in .png, .svg, .pdf; name such a file" in err
    assert not os.path.exists("demo.txt")


@pytest.mark.parametrize("command", ["demo", "replay", "bench"])
def test_json_on_standard_output(folder: Path, command: str) -> None:
    rounds = folder / "rounds"
    assert call("demo", *QUICK, "--record", rounds)[0] == 0
    arguments = {
        "demo": ["demo", *QUICK],
        "replay": ["replay", rounds, "--device", "cpu"],
        "bench": ["bench", "--device", "cpu", "--batch", 1, "--repeats", 3],
    }[command]
    code, out, err = call(*arguments, "--json", "-")
    assert code == 0
    assert json.loads(out)["backend"] == "host"
    assert ("ratio" if command == "bench" else "mismatches: 0") in err
    assert not (folder / "-").exists()
    assert call(*arguments, "--json", "./-")[0] == 0
    assert json.loads((folder / "-").read_text())["backend"] == "host"


def test_a_file_is_replaced(folder: Path) -> None:
    path = folder / "result.json"
    path.write_text("x" * 1_000_000)
    assert call("demo", *QUICK, "--json", path)[0] == 0
    assert json.loads(path.read_text())["mismatches"] == 0


@needs_full
@pytest.mark.parametrize(("option", "name"), [("--json", "full"), ("--record", "full"), ("--record", "full.gz")])
def test_a_failed_write_names_the_file(folder: Path, option: str, name: str) -> None:
    (folder / name).symlink_to("/dev/full")
    code, out, err = call("demo", *QUICK, option, name)
    assert code == 2
    assert ("mismatches: 0" in out) == (option == "--json"), "what was found out is still told"
    words = {"--json": "--json 'full': No space left on device; name a file that can be written"}
    assert (
        err == f"qsa-group: cannot write {words.get(option, f'{name}: No space left on device; name another file')}\n"
    )


@needs_full
def test_a_failed_picture_names_the_file(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    (folder / "full.png").symlink_to("/dev/full")
    code, _, err = call("demo", *QUICK, "--plot", "full.png")
    assert code == 2
    assert "cannot write --plot full.png: No space left on device; name another file" in err


def program(*arguments: str, stdout: Any = subprocess.PIPE, redirect: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command line as a program, through a shell."""
    return subprocess.run(
        ["sh", "-c", f'"$0" -m qsa_group "$@" {redirect}', sys.executable, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


@needs_full
@pytest.mark.parametrize("arguments", [["explain", "--device", "cpu"], ["doctor"], ["demo", *QUICK]])
def test_a_full_disk_under_standard_output(arguments: list[str]) -> None:
    """Told once, and not as the interpreter's own failure at exit, code 120."""
    with open("/dev/full", "w") as full:
        ran = program(*arguments, stdout=full)
    assert ran.returncode == 2
    assert ran.stderr == "qsa-group: standard output cannot be written, send it elsewhere: No space left on device\n"


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    """The exit code is that of the reader; nothing is said."""
    ran = program("explain", "--device", "cpu", redirect="| true")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
