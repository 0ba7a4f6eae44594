"""Compiled kernels, loaded on a device and kept as long as the process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch

import qsa_group._core as _core
from qsa_group.errors import LaunchError, UnsupportedError
from qsa_group.kernel import KernelVariant, compile_variant

from .backend import Refusal
from .cuda import capability, is_capturing

__all__ = ["LoadedKernel", "load_by_driver", "load_by_triton"]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that the driver can start.

    Attributes:
        compiled: Triton's `CompiledKernel`, for launches by Triton; None for a stub.
        kernel: the kernel as the core starts it.
    """

    compiled: Any
    kernel: _core.Kernel


_lock = threading.Lock()
# Never emptied: recorded CUDA graphs refer to loaded kernels.
_by_triton: dict[tuple[KernelVariant, str], Any] = {}
_by_driver: dict[tuple[KernelVariant, str], LoadedKernel | Refusal] = {}


def load_by_triton(variant: KernelVariant, device: torch.device) -> Any:
    """Triton's `CompiledKernel` of a variant, loaded on a device.

    Triton itself would load at a first run, maybe inside a capture.

    Raises:
        UnsupportedError: the kernel is not loaded yet and a capture is on, or it cannot be compiled or loaded.
    """
    key = (variant, str(device))
    if key not in _by_triton:
        _require_no_capture(variant, device)
        with _lock:
            if key not in _by_triton:
                compiled = compile_variant(variant, capability(device), device.index or 0)
                _init_handles(compiled, device)
                _by_triton[key] = compiled
    return _by_triton[key]


def load_by_driver(variant: KernelVariant, device: torch.device) -> LoadedKernel | Refusal:
    """A variant's kernel, loaded on a device by the driver; a refusal where it must be started by Triton.

    Raises:
        UnsupportedError: the kernel is not loaded yet and a capture is on, or it cannot be compiled.
    """
    key = (variant, str(device))
    if key not in _by_driver:
        _require_no_capture(variant, device)
        with _lock:
            if key not in _by_driver:
                compiled = compile_variant(variant, capability(device), device.index or 0)
                _by_driver[key] = _needs_triton(compiled) or _load(compiled, variant, device)
    return _by_driver[key]


def _require_no_capture(variant: KernelVariant, device: torch.device) -> None:
    if is_capturing(device):
        steps = " + ".join(str(group.num_steps) for group in variant.groups)
        remedy = "plan, or call planner.warmup," if len(variant.groups) == 1 else "join plans of the same form"
        raise UnsupportedError(
            f"a kernel for {steps} steps is not loaded on {device} and a capture is on; {remedy} before the capture"
        )


def _needs_triton(compiled: Any) -> Refusal | None:
    """Why a compiled kernel must be started by Triton's own launcher; None if the driver may start it."""
    metadata = compiled.metadata
    checks = (
        (getattr(metadata, "num_ctas", 1) != 1, "it runs in clusters of thread blocks"),
        (getattr(metadata, "launch_pdl", False), "it uses programmatic dependent launch"),
        (getattr(metadata, "launch_cooperative_grid", False), "it is a cooperative launch"),
        (getattr(metadata, "global_scratch_size", 0) > 0, "it needs global scratch memory"),
        (getattr(metadata, "profile_scratch_size", 0) > 0, "it needs profiling scratch memory"),
        (bool(getattr(metadata, "instrumentation_mode", "")), "it is instrumented"),
    )
    return next((Refusal(reason) for applies, reason in checks if applies), None)


def _load(compiled: Any, variant: KernelVariant, device: torch.device) -> LoadedKernel | Refusal:
    metadata = compiled.metadata
    with torch.cuda.device(device):
        # A fresh thread has no context until torch touches the device.
        torch.cuda.synchronize(device)
        try:
            kernel = _core.Driver.cuda().load(
                compiled.asm["cubin"], metadata.name, metadata.num_warps, metadata.shared, variant.groups
            )
        except (UnsupportedError, LaunchError) as error:
            return Refusal(str(error))
    return LoadedKernel(compiled, kernel)


def _init_handles(compiled: Any, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        try:
            getattr(compiled, "_init_handles", lambda: None)()
        except Exception as error:  # Triton raises what its C compiler, its launcher or the driver raised.
            raise UnsupportedError(
                f"Triton's launcher cannot load the refresh kernel ({error}); install a C compiler for Triton's "
                "launcher, clear Triton's cache, or use backend 'host'"
            ) from error
