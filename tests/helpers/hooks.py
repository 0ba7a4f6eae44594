"""Triton's launch hooks, as a profiler sets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def launch_hook() -> Iterator[list[Any]]:
    """Sets a launch hook, and gives the list of what the hook was called with."""
    from triton import knobs

    calls: list[Any] = []
    hook = knobs.runtime.launch_enter_hook
    if hasattr(hook, "add"):
        hook.add(calls.append)
        try:
            yield calls
        finally:
            hook.remove(calls.append)
    else:
        knobs.runtime.launch_enter_hook = calls.append
        try:
            yield calls
        finally:
            knobs.runtime.launch_enter_hook = hook
