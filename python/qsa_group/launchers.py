"""Which way a kernel can be started here, and the objects that start it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch

from . import _core
from .compile import compile_variant, refusal
from .errors import LaunchError, UnsupportedError
from .variants import Variant

__all__ = [
    "capability",
    "capturing",
    "direct_refusal",
    "hook_lists",
    "interpreting",
    "load_kernel",
    "load_kernels",
    "start_by_triton",
    "triton_refusal",
]

_lock = threading.Lock()
_interpreter = threading.Lock()
_loaded: dict[tuple[Variant, int, str, bool], tuple[Any, _core.Kernel | str]] = {}
"""Compiled kernels and what starts them; kept as long as the process, since recorded graphs refer to them."""


def interpreting() -> bool:
    """Whether Triton runs kernels in Python, on host memory (TRITON_INTERPRET=1 when it was imported)."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("1", "true", "on", "yes", "y"):
        return False
    try:
        import triton

        from .kernel import refresh_kernel
    except ImportError:
        return False
    return not isinstance(refresh_kernel, triton.JITFunction)


def capturing(device: torch.device) -> bool:
    """Whether the device's current stream is recording a CUDA graph. Captures of other threads are not seen."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def capability(device: torch.device) -> int:
    """Compute capability of a device as Triton writes it, such as 90."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def triton_refusal(device: torch.device) -> str | None:
    """Why Triton cannot run the kernel on tensors of this device; None if it can."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"Triton is not usable here ({error})"
    if device.type == "cpu":
        return None if interpreting() else "CPU tensors need Triton's interpreter (set TRITON_INTERPRET=1)"
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the kernel is compiled for NVIDIA GPUs, the tensors are on {device}"
    return None


def direct_refusal(device: torch.device, driver: str) -> str | None:
    """Why the kernel cannot be started by a bare driver call on this device; None if it can."""
    if driver != "cuda":
        return None
    if device.type != "cuda":
        return f"direct launches need a CUDA device, the tensors are on {device}"
    refusal = triton_refusal(device)
    if refusal is None and interpreting():
        refusal = "TRITON_INTERPRET is set, so nothing is compiled"
    return refusal


def load_kernel(
    variant: Variant, device: torch.device, driver: str, *, by_triton: bool = False
) -> tuple[Any, _core.Kernel | str]:
    """The compiled kernel of a variant, and it loaded on a device; a refusal in words where it must not be.

    `by_triton` says that Triton's launcher will start it: then that is loaded, and nothing beside it.

    Raises:
        UnsupportedError: it would have to be compiled or loaded inside a capture, or cannot be compiled.
    """
    if driver != "cuda":
        return None, _core.Kernel(b"", "stub", variant.num_warps, 0, _parameters(variant), driver=driver)
    arch = capability(device)
    key = (variant, arch, str(device), by_triton)
    found = _loaded.get(key)
    if found is not None:
        return found
    if capturing(device):
        joined = len(variant.groups) > 1
        steps = " + ".join(str(group.num_steps) for group in variant.groups)
        remedy = "join plans of the same form" if joined else "plan, or call planner.warmup,"
        raise UnsupportedError(
            f"a kernel for {steps} steps is not loaded on {device} and a capture is on; {remedy} before the capture"
        )
    with _lock:
        if key not in _loaded:
            _loaded[key] = _compile_and_load(variant, device, arch, by_triton)
        return _loaded[key]


def load_kernels(
    variants: Sequence[Variant], device: torch.device, driver: str, *, direct: bool
) -> tuple[list[Any], list[_core.Kernel] | str]:
    """The compiled kernels of variants, and what starts them directly; or, where one must not be, why.

    Then, and where a direct start is not asked for, all are loaded for Triton's launcher, which would load them at a
    first run, inside a capture maybe.

    Raises:
        UnsupportedError: as `load_kernel`.
    """
    loaded = [load_kernel(variant, device, driver, by_triton=not direct) for variant in variants]
    refused = next((kernel for _, kernel in loaded if isinstance(kernel, str)), None)
    if refused is not None and direct:
        loaded = [load_kernel(variant, device, driver, by_triton=True) for variant in variants]
    compiled = [made for made, _ in loaded]
    if refused is not None:
        return compiled, refused
    return compiled, [kernel for _, kernel in loaded if not isinstance(kernel, str)]


def start_by_triton(
    variant: Variant, compiled: Any, programs: int, words: tuple[Any, ...], device: torch.device
) -> None:
    """Starts a kernel with packed words through Triton's launcher, or its interpreter; a launch of no programs not."""
    if programs == 0:
        return
    arguments = variant.arguments(words)
    if interpreting():
        # The interpreter keeps the place of the program that runs in globals.
        with _interpreter:
            variant.source()[0][programs, 1, 1](*arguments)
        return
    with torch.cuda.device(device):
        compiled[programs, 1, 1](*arguments)


def _compile_and_load(
    variant: Variant, device: torch.device, arch: int, by_triton: bool
) -> tuple[Any, _core.Kernel | str]:
    compiled = compile_variant(variant, arch, device.index or 0)
    kernel: _core.Kernel | str | None = "Triton's launcher was asked for" if by_triton else refusal(compiled)
    with torch.cuda.device(device):
        # A fresh thread has no context until the device is touched.
        torch.cuda.synchronize(device)
        if kernel is None:
            kernel = _load(compiled.asm["cubin"], compiled.metadata, variant)
        if isinstance(kernel, str):
            # Triton loads at first use, which may be inside a capture; it is had now.
            getattr(compiled, "_init_handles", lambda: None)()
    return compiled, kernel


def _load(cubin: bytes, metadata: Any, variant: Variant) -> _core.Kernel | str:
    """The kernel, loaded on the current device; why not, where its parameters are not what would be passed."""
    refused = ""
    # Triton appends two scratch pointers from 3.5 on and one before; the binary's own table says which.
    for scratch_words in (2, 1):
        try:
            return _core.Kernel(
                cubin, metadata.name, metadata.num_warps, metadata.shared, _parameters(variant), scratch_words
            )
        except (UnsupportedError, LaunchError) as error:
            refused = refused or str(error)
    return refused


def _parameters(variant: Variant) -> list[tuple[int, int]]:
    """What the parameters of a kernel follow from: steps of each group, buffers of a step."""
    return [(group.num_steps, len(group.buffers)) for group in variant.groups]


def hook_lists() -> list[list[Any]]:
    """The lists that Triton's launch hooks stand in; a profiler has hooked launches while one of them is not empty.

    Raises:
        UnsupportedError: this Triton keeps hooks in a way that cannot be watched, and one is set.
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
            raise UnsupportedError(f"Triton's {name} is set")
    return lists
