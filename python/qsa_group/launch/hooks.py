"""Triton's launch hooks. Profilers set them, and direct launches would bypass them."""

from __future__ import annotations

from typing import Any

from .backend import Refusal

__all__ = ["launch_hooks"]


def launch_hooks() -> list[list[Any]] | Refusal:
    """The lists of Triton's launch hooks. Launches are hooked while one of the lists is not empty.

    A refusal where this Triton keeps hooks in a way that cannot be watched, and a hook is set.
    """
    try:
        from triton import knobs
    except ImportError:
        return []
    lists = []
    for name in ("launch_enter_hook", "launch_exit_hook"):
        hook = getattr(knobs.runtime, name, None)
        calls = getattr(hook, "calls", None)
        if isinstance(calls, list):
            lists.append(calls)
        elif hook is not None:
            return Refusal(f"Triton's {name} is set")
    return lists
