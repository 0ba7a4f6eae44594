"""Compilation of the kernel ahead of time, without specialisation.

`triton.compile` on an `ASTSource` without attributes gives one binary for every value, dtype and alignment, and needs
neither a GPU nor a driver. Triton keeps compiled code across processes in a cache of its own. Within a process each
variant is compiled once.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from qsa_group.errors import UnsupportedError

from .variant import KernelVariant

__all__ = ["compile_stats", "compile_variant"]

_lock = threading.Lock()
_compiled: dict[tuple[KernelVariant, int, int], Any] = {}
_seconds = 0.0


def compile_stats() -> tuple[int, float]:
    """The number of kernels compiled in this process, and the seconds spent on them."""
    return len(_compiled), _seconds


def compile_variant(variant: KernelVariant, capability: int, device: int = 0) -> Any:
    """Compiles a variant, or returns the kernel that was compiled before.

    Args:
        variant: what to compile.
        capability: compute capability as Triton writes it, such as 90.
        device: index of the device on which the kernel will be loaded.

    Returns:
        Triton's `CompiledKernel`. A `CompiledKernel` loads itself once, on one device, so that each device index has
        its own; Triton's cache makes the second one cheap.

    Raises:
        UnsupportedError: Triton is not installed, or cannot compile the kernel.
    """
    global _seconds
    key = (variant, capability, device)
    with _lock:
        if key not in _compiled:
            started = time.perf_counter()
            _compiled[key] = _compile(variant, capability)
            _seconds += time.perf_counter() - started
        return _compiled[key]


def _compile(variant: KernelVariant, capability: int) -> Any:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise UnsupportedError(f"Triton is not usable here ({error}); install triton, or use backend 'host'") from error
    kernel, signature, constexprs = variant.source()
    if not isinstance(kernel, triton.JITFunction):
        raise UnsupportedError("TRITON_INTERPRET is set, so nothing can be compiled; unset it, or use CPU tensors")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs={})
    try:
        return triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": variant.num_warps}
        )
    except Exception as error:
        raise UnsupportedError(
            f"Triton {triton.__version__} cannot compile the refresh kernel ({error}); use backend 'host' or another "
            "Triton"
        ) from error
