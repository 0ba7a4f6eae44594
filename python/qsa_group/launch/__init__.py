"""The ways to start a plan's launches.

A `Backend` prepares a plan's launcher. The launcher starts the plan's launches at each run: a launcher of the core gets
launches and checked inputs, a Python launcher gets a launch's index, its programs and its packed words. The backends
`direct`, `triton` and `host` have a module each. `staged` is the host backend's launcher for
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
