"""What the README says runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_example_runs_and_is_short() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "2 steps in 1 launch" in ran.stdout
    assert ran.stdout.rstrip().endswith("[102, 9, 1, 1, 1, 1, 1, 1]")


def test_the_whole_round_of_the_usage_page_runs() -> None:
    page = README.parent / "docs" / "usage.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("decode + target_verify on ")
    # 100 and 7, two and three accepted, and the first step's offset.
    assert "[103, 11, 1, 1, 1, 1, 1, 1]" in ran.stdout


def test_what_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (README.parent / target).exists(), target
