"""The plugin loaded by SGLang's own loader, each time in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qsa_group

DIST = "qsa_group_entry_point"
SUMMARY = """
import importlib, json, logging, sys
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append((record.name, record.levelname, record.getMessage()))
logging.getLogger().addHandler(Keep())
logging.getLogger().setLevel(logging.INFO)
module = "sglang.srt.layers.attention.qwen_sparse_attn_backend"
names = ("init_cuda_graph_state", "init_forward_metadata_out_graph", "init_forward_metadata_in_graph")
def depth(method):
    count = 0
    while hasattr(method, "__wrapped__"):
        method, count = method.__wrapped__, count + 1
    return count
def depths(module):
    classes = (module.QwenSparseMultiStepDraftBackend, module.QwenSparseAttnBackend)
    return [depth(getattr(owner, name)) for owner in classes for name in names]
def tell(**more):
    bad = [(name, text) for name, level, text in records if level in ("WARNING", "ERROR")]
    ours = [text for name, text in bad if name.startswith("qsa_group")]
    loader = [text for name, text in bad if name.startswith("sglang.srt.plugins")]
    imported = "qsa_group.sglang" in sys.modules
    hooked = depths(sys.modules[module]) if module in sys.modules else None
    told = {"depths": hooked, "warnings": ours, "loader": loader, "imported": imported, **more}
    print("RESULT" + json.dumps(told))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the entry point's metadata, as an installed wheel has it."""
    folder = tmp_path / f"{DIST}-0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DIST}\nVersion: 0.0\n")
    (folder / "entry_points.txt").write_text("[sglang.srt.plugins]\nqsa_group = qsa_group.sglang:register\n")
    return tmp_path


def run(code: str, *paths: Path, **environ: str) -> dict[str, object]:
    """Runs code in a fresh process, and returns what the code gives to `tell`.

    Args:
        code: runs after `SUMMARY`.
        paths: folders from which packages can be imported.
        environ: more environment variables.
    """
    own = Path(qsa_group.__file__).parents[1]
    path = os.pathsep.join(str(folder) for folder in (*paths, own, Path(__file__).parent))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("QSA_GROUP_", "SGLANG_PLUGINS"))}
    done = subprocess.run(
        [sys.executable, "-c", SUMMARY + code],
        env={**env, "PYTHONPATH": path, "QSA_GROUP_SGLANG_STRICT": "1", **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert done.returncode == 0, done.stderr[-3000:]
    assert lines, done.stderr[-3000:]
    told: dict[str, object] = json.loads(lines[-1].removeprefix("RESULT"))
    return told


LOAD = """
import sglang.srt.plugins as plugins
plugins.load_plugins()
"""


def test_loaded_four_times_and_imported_by_two_paths(site: Path) -> None:
    code = """
import importlib.util
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QwenSparseMultiStepDraftBackend as bound_before
for _ in range(4):
    plugins._plugins_loaded = False
    plugins.load_plugins()
from qsa_group.sglang import install, Settings
import sglang.srt.layers.attention.qwen_sparse_attn_backend as first
sys.modules["same_module"] = first
spec = importlib.util.spec_from_file_location("second_module", first.__file__)
second = sys.modules["second_module"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(second)
for _ in range(2):
    assert install(module="same_module") and install(module="second_module")
tell(bound=depth(bound_before.init_forward_metadata_out_graph), second=depths(second))
"""
    told = run("import sglang.srt.plugins as plugins\n" + code, site)
    assert told["depths"] == told["second"] == [1] * 6
    assert told["bound"] == 1
    assert told["warnings"] == told["loader"] == []


def test_loaded_by_its_entry_point_and_refreshes(site: Path) -> None:
    code = """
import random
from sglang_harness import Engine, assert_same_round, copy_of_module, random_batch
ours, theirs = Engine(), Engine(copy_of_module())
for engine in (ours, theirs):
    engine.capture(1, 4, 8)
draw = random.Random(0)
for _ in range(6):
    assert_same_round(ours, theirs, random_batch(draw, draw.randint(1, 8), slots=12, width=1024))
from qsa_group.sglang import stats
tell(recorded=stats()["recorded"])
"""
    told = run(LOAD + code, site, QSA_GROUP_SGLANG_BACKEND="host")
    assert told == {"depths": [1] * 6, "warnings": [], "loader": [], "imported": True, "recorded": 18}


# The following tests hook nothing, which shows in `depths` None: a hook would import SGLang's backends.


def test_switched_off_or_not_named(site: Path) -> None:
    off = run(LOAD + "tell()", site, QSA_GROUP_SGLANG_MODE="off")
    assert off == {"depths": None, "warnings": [], "loader": [], "imported": True}
    other = run(LOAD + "tell()", site, SGLANG_PLUGINS="another")
    assert other == {"depths": None, "warnings": [], "loader": [], "imported": False}


def test_an_unknown_value_is_said_once(site: Path) -> None:
    code = """
for _ in range(3):
    plugins._plugins_loaded = False
    plugins.load_plugins()
tell()
"""
    told = run(LOAD + code, site, QSA_GROUP_SGLANG_MODE="fast")
    assert told["depths"] is None
    assert len(told["warnings"]) == 1  # type: ignore[arg-type]
    assert told["loader"] == []


def test_an_engine_without_the_loader() -> None:
    told = run("from qsa_group.sglang import install\nassert install()\ntell()")
    assert told["depths"] == [1] * 6
    assert told["warnings"] == []


def test_nothing_stays_when_the_wheel_goes(site: Path) -> None:
    """Without the metadata of the wheel, which is all that SGLang reads, the package is not imported."""
    for file in (*site.rglob("*.txt"), *site.rglob("METADATA")):
        file.unlink()
    (site / f"{DIST}-0.0.dist-info").rmdir()
    code = """
import importlib.metadata
rest = [p for p in importlib.metadata.entry_points(group="sglang.srt.plugins") if p.value.startswith("qsa_group")]
"""
    gone = run(code + LOAD + "tell(rest=len(rest))", site)
    if gone["rest"]:
        pytest.skip("the package itself is installed here, so its own entry point remains")
    assert gone == {"depths": None, "warnings": [], "loader": [], "imported": False, "rest": 0}


def test_the_wheel_owns_nothing_outside_itself() -> None:
    """There is no .pth file and nothing in SGLang's folder, so that removing the wheel removes everything."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution("qsa-group").files or []
    except PackageNotFoundError:
        pytest.skip("the package is not installed as a wheel here")
    assert files
    tops = {next(part for part in file.parts if part != "..") for file in files}
    assert all(top.startswith(("qsa_group", "bin")) for top in tops), tops
