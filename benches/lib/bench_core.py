"""What the compiled core offers to benches alone. A released wheel has none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qsa_group import ReplayPlan, _core

from .timing import LiveSet

__all__ = ["MISSING", "bare_launches", "empty_call"]

MISSING = "no bare launch and no empty call: this qsa_group has no Cargo feature `bench` (see make bench-wheel)"
"""One line for where the functions are missing."""


def empty_call() -> Callable[..., None] | None:
    """A function that takes what `ReplayPlan.run` takes and does nothing; None where the core has no such function."""
    function: Callable[..., None] | None = getattr(_core, "noop", None)
    return function


def bare_launches(plan: ReplayPlan, inputs: LiveSet) -> Callable[[int], float] | None:
    """Starts a plan's first launch n times in a Rust loop, with arguments packed once, and returns the seconds.

    None where the core has no such function.
    """
    function: Callable[..., Any] | None = getattr(_core, "bare_launch_seconds", None)
    if function is None:
        return None
    seq_lens, req_pool_indices = inputs[:2]
    extend_lens = inputs[3] if len(inputs) > 3 else None
    return lambda count: float(function(plan, seq_lens, req_pool_indices, count, extend_lens))
