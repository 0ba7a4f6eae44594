"""Results of a bench: measurements that may fail, and the JSON that is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["attempt", "emit", "error_text"]

T = TypeVar("T")


def error_text(error: BaseException) -> str:
    """One line of an error, for a row of the result."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


def attempt(errors: dict[str, str], name: str, work: Callable[[], T]) -> T | None:
    """Does one measurement. If the measurement fails, `errors[name]` gets the error and the bench goes on."""
    try:
        return work()
    except Exception as error:  # Whatever went wrong, the other measurements are worth having.
        errors[name] = error_text(error)
        return None


def emit(data: dict[str, Any], target: str | None, *, quiet: bool = False) -> None:
    """Writes a result as JSON to a file, or to standard output for `-`. None writes nothing."""
    if target is None:
        return
    text = json.dumps(data, indent=1)
    if target == "-":
        print(text)
        return
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    if not quiet:
        print(f"wrote {path}", file=sys.stderr)
