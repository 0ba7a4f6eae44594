"""Counts of what a process launches, compiles and loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["CompileCounter", "launches_of"]


def launches_of(call: Callable[[], Any], rounds: int = 10) -> dict[str, float]:
    """Driver and runtime calls that start work, a call of `call()`, by name, as the profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    counts: dict[str, float] = {}
    for event in profiler.events() or ():
        name = event.name
        if "Launch" in name and name.startswith(("cuda", "cu")):
            counts[name] = counts.get(name, 0) + 1 / rounds
    return {name: round(count, 2) for name, count in counts.items()}


@dataclass
class CompileCounter:
    """Counts what Triton compiles and loads while the counter is entered, whoever asks for it.

    Attributes:
        jit: compiles that a launch asked for.
        compiled: compiles.
        loaded: kernels loaded.
        names: kernels that a launch had compiled.
    """

    jit: int = 0
    compiled: int = 0
    loaded: int = 0
    names: list[str] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def __enter__(self) -> CompileCounter:
        from triton import knobs

        self._add(knobs.runtime, "jit_post_compile_hook", self._on_jit)
        self._add(knobs.compilation, "listener", self._on_compile)
        self._add(knobs.runtime, "kernel_load_end_hook", self._on_load)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    @property
    def total(self) -> int:
        """Compiles. A compile that a launch asked for is in both counts, one ahead of time in the second alone."""
        return max(self.jit, self.compiled)

    def _add(self, owner: Any, name: str, hook: Callable[..., None]) -> None:
        before: Any = getattr(owner, name, None)
        if hasattr(before, "add") and hasattr(before, "remove"):  # A chain of hooks, in Triton 3.5 and later.
            before.add(hook)
            self._undo.append(lambda: before.remove(hook))
        elif hasattr(type(owner), name) or hasattr(owner, name):
            setattr(owner, name, hook)
            self._undo.append(lambda: setattr(owner, name, before))

    def _on_jit(self, *_: Any, **more: Any) -> None:
        self.jit += 1
        self.names.append(str(getattr(more.get("fn"), "name", "?")))

    def _on_compile(self, *_: Any, **__: Any) -> None:
        self.compiled += 1

    def _on_load(self, *_: Any, **__: Any) -> None:
        self.loaded += 1
