"""Launches by one driver call each, past Triton's launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import qsa_group._core as _core
from qsa_group.kernel import KernelVariant, TilingRule

from .backend import PlanInputs, Prepared, Refusal
from .drivers import CudaDriver, Driver
from .kernels import KernelBackend, LaunchVariants
from .loading import LoadedKernel, load_by_triton
from .triton import TritonLauncher

if TYPE_CHECKING:
    import torch

    from qsa_group.buffers import RequestTable

__all__ = ["DirectBackend"]


class DirectBackend(KernelBackend):
    """Starts the kernel by one driver call.

    Args:
        driver: what starts the kernel; None for the installed CUDA driver.
        tiling: see `KernelBackend`.
    """

    name = "direct"

    def __init__(self, driver: Driver | None = None, *, tiling: TilingRule | None = None) -> None:
        super().__init__(tiling=tiling)
        self._driver = CudaDriver() if driver is None else driver

    def refusal(self, device: torch.device) -> Refusal | None:
        """Why the driver cannot start kernels on this device; None if it can."""
        return self._driver.refusal(device)

    def prepare(self, inputs: PlanInputs) -> Prepared:
        """See `Backend.prepare`. A plan with a kernel that the driver must not start goes through Triton's launcher."""
        launches = self.variants(inputs)
        device = inputs.table.device
        hooks = self._driver.hooks()
        if isinstance(hooks, Refusal):
            return _by_triton(launches, device, hooks)
        loaded: list[LoadedKernel] = []
        for variant in launches.variants:
            kernel = self._driver.load(variant, device)
            if isinstance(kernel, Refusal):
                return _by_triton(launches, device, kernel)
            loaded.append(kernel)
        launcher = _core.DirectLauncher(
            inputs.table,
            [kernel.kernel for kernel in loaded],
            hooks,
            TritonLauncher(launches.variants, [kernel.compiled for kernel in loaded], device),
        )
        return Prepared(launcher, launches.grids, self.name)

    def load(self, variant: KernelVariant, table: RequestTable) -> None:
        """Compiles and loads a variant's kernel, by Triton where the driver must not start it."""
        if isinstance(self._driver.load(variant, table.device), Refusal):
            load_by_triton(variant, table.device)


def _by_triton(launches: LaunchVariants, device: torch.device, refusal: Refusal) -> Prepared:
    compiled = [load_by_triton(variant, device) for variant in launches.variants]
    launcher = TritonLauncher(launches.variants, compiled, device)
    fallback = f"not started directly but by Triton's launcher: {refusal}"
    return Prepared(launcher, launches.grids, "triton", (fallback,))
