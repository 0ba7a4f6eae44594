"""Launches by Triton's own launcher, or by Triton's interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from qsa_group.errors import LaunchError
from qsa_group.kernel import KernelVariant

from .backend import PlanInputs, Prepared, Refusal
from .kernels import KernelBackend
from .loading import load_by_triton

if TYPE_CHECKING:
    from qsa_group.buffers import RequestTable

__all__ = ["InterpreterLauncher", "TritonBackend", "TritonLauncher", "is_interpreting", "triton_refusal"]


class TritonBackend(KernelBackend):
    """Starts the kernel through Triton's launcher, or through its interpreter where TRITON_INTERPRET=1 is set."""

    name = "triton"

    def refusal(self, device: torch.device) -> Refusal | None:
        """Why Triton cannot run the kernel on tensors of this device; None if it can."""
        return triton_refusal(device)

    def prepare(self, inputs: PlanInputs) -> Prepared:
        """See `Backend.prepare`."""
        launches = self.variants(inputs)
        launcher: InterpreterLauncher | TritonLauncher
        if is_interpreting():
            launcher = InterpreterLauncher(launches.variants)
        else:
            device = inputs.table.device
            compiled = [load_by_triton(variant, device) for variant in launches.variants]
            launcher = TritonLauncher(launches.variants, compiled, device)
        return Prepared(launcher, launches.grids, self.name)

    def load(self, variant: KernelVariant, table: RequestTable) -> None:
        """Compiles and loads a variant's kernel. The interpreter compiles nothing."""
        if not is_interpreting():
            load_by_triton(variant, table.device)


class TritonLauncher:
    """Starts each launch of a plan through Triton's launcher.

    Args:
        variants: the kernel variant of each launch.
        compiled: Triton's `CompiledKernel` of each launch.
        device: device of the plan.
    """

    def __init__(self, variants: Sequence[KernelVariant], compiled: Sequence[Any], device: torch.device) -> None:
        self._variants = variants
        self._compiled = compiled
        self._device = device

    def start(self, index: int, programs: int, words: tuple[int, ...]) -> None:
        """Starts a launch with packed words.

        Raises:
            LaunchError: Triton's launcher, or a launch hook, raised.
        """
        with torch.cuda.device(self._device):
            try:
                self._compiled[index][programs, 1, 1](*self._variants[index].arguments(words))
            except RuntimeError as error:
                raise LaunchError(f"Triton's launcher raised {type(error).__name__}: {error}") from error


class InterpreterLauncher:
    """Runs each launch of a plan in Triton's interpreter, on host memory.

    Args:
        variants: the kernel variant of each launch.
    """

    # The interpreter keeps the running program's place in globals.
    _one_at_a_time = threading.Lock()

    def __init__(self, variants: Sequence[KernelVariant]) -> None:
        self._variants = variants

    def start(self, index: int, programs: int, words: tuple[int, ...]) -> None:
        """Runs a launch with packed words."""
        kernel, *_ = self._variants[index].source()
        with self._one_at_a_time:
            kernel[programs, 1, 1](*self._variants[index].arguments(words))


def is_interpreting() -> bool:
    """Whether Triton runs kernels in Python, on host memory (TRITON_INTERPRET=1 when Triton was imported)."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("1", "true", "on", "yes", "y"):
        return False
    try:
        import triton

        from qsa_group.kernel.refresh import refresh_kernel
    except ImportError:
        return False
    return not isinstance(refresh_kernel, triton.JITFunction)


def triton_refusal(device: torch.device) -> Refusal | None:
    """Why Triton cannot run the kernel on tensors of this device; None if it can."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return Refusal(f"Triton is not usable here ({error})")
    if device.type == "cpu":
        return None if is_interpreting() else Refusal("CPU tensors need Triton's interpreter (set TRITON_INTERPRET=1)")
    if device.type != "cuda" or torch.version.cuda is None:
        return Refusal(f"the kernel is compiled for NVIDIA GPUs, the tensors are on {device}")
    return None
