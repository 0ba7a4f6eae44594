"""Triton's launch hooks, as a profiler sets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def launch_hook(error: Exception | None = None) -> Iterator[list[Any]]:
    """Sets a launch hook, and gives the list of what the hook was called with. The hook raises the error, if any."""
    from triton import knobs

    calls: list[Any] = []

    def enter(metadata: Any) -> None:
        calls.append(metadata)
        if error is not None:
            raise error

    hook = knobs.runtime.launch_enter_hook
    if hasattr(hook, "add"):
        hook.add(enter)
        try:
            yield calls
        finally:
            hook.remove(enter)
    else:
        knobs.runtime.launch_enter_hook = enter
        try:
            yield calls
        finally:
            knobs.runtime.launch_enter_hook = hook
