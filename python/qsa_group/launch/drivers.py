"""What a direct backend starts kernels by: the CUDA driver, or a stub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import qsa_group._core as _core
from qsa_group.kernel import KernelVariant

from .backend import Refusal
from .hooks import launch_hooks
from .loading import LoadedKernel, load_by_driver
from .triton import triton_refusal

if TYPE_CHECKING:
    import torch

__all__ = ["CudaDriver", "Driver", "StubDriver"]


class Driver(Protocol):
    """A driver that loads and starts kernels."""

    def refusal(self, device: torch.device) -> Refusal | None:
        """Why the driver cannot start kernels on this device; None if it can."""

    def hooks(self) -> list[list[Any]] | Refusal:
        """Lists of launch hooks. Launches belong to Triton's launcher while one of the lists is not empty."""

    def load(self, variant: KernelVariant, device: torch.device) -> LoadedKernel | Refusal:
        """A variant's kernel; a refusal where Triton must start it.

        Raises:
            UnsupportedError: the kernel is not loaded yet and a capture is on, or it cannot be compiled.
        """


class CudaDriver:
    """The installed CUDA driver."""

    def refusal(self, device: torch.device) -> Refusal | None:
        """Why the driver cannot start kernels on this device; None if it can."""
        from .triton import is_interpreting

        if device.type != "cuda":
            return Refusal(f"direct launches need a CUDA device, the tensors are on {device}")
        refusal = triton_refusal(device)
        if refusal is None and is_interpreting():
            return Refusal("TRITON_INTERPRET is set, so nothing is compiled")
        return refusal

    def hooks(self) -> list[list[Any]] | Refusal:
        """Triton's launch hooks."""
        return launch_hooks()

    def load(self, variant: KernelVariant, device: torch.device) -> LoadedKernel | Refusal:
        """See `Driver.load`."""
        return load_by_driver(variant, device)


class StubDriver:
    """A driver that does nothing, on any device. Shows what a call costs the host, without a GPU.

    Args:
        fails: whether each launch fails, with `LaunchError`.
    """

    def __init__(self, *, fails: bool = False) -> None:
        self._driver = _core.Driver.stub(fails=fails)

    def refusal(self, device: torch.device) -> Refusal | None:
        """None: the stub works on any device."""
        del device
        return None

    def hooks(self) -> list[list[Any]] | Refusal:
        """None are watched."""
        return []

    def load(self, variant: KernelVariant, device: torch.device) -> LoadedKernel | Refusal:
        """A kernel that does nothing."""
        del device
        return LoadedKernel(None, self._driver.load(b"", "stub", variant.num_warps, 0, variant.groups))
