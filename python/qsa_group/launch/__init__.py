"""The ways to start a plan's launches.

A `Backend` prepares what starts the launches of a plan. A launcher is what was prepared: it gets checked inputs from
the Rust core at each run. `direct`, `triton` and `host` have a module each, and so has `staged`, the host's way with
tensors that are elsewhere.
"""

from __future__ import annotations

from .backend import Backend, PlanInputs, Prepared, Refusal
from .cuda import is_capturing
from .direct import DirectBackend
from .drivers import CudaDriver, Driver, StubDriver
from .host import HostBackend
from .select import resolve
from .triton import TritonBackend

__all__ = [
    "Backend",
    "CudaDriver",
    "DirectBackend",
    "Driver",
    "HostBackend",
    "PlanInputs",
    "Prepared",
    "Refusal",
    "StubDriver",
    "TritonBackend",
    "is_capturing",
    "resolve",
]
