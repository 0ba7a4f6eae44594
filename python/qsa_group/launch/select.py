"""The backend that a planner gets."""

from __future__ import annotations

import torch

from qsa_group.errors import LayoutError, UnsupportedError

from .backend import Backend
from .direct import DirectBackend
from .host import HostBackend
from .triton import TritonBackend

__all__ = ["resolve"]


def resolve(backend: str | Backend, device: torch.device) -> tuple[Backend, list[str]]:
    """The backend, and why it is not a better one.

    Args:
        backend: "auto", the name of a backend, or a backend.
        device: device of the request table.

    Raises:
        LayoutError: an unknown name.
        UnsupportedError: the backend cannot work on this device.
    """
    if isinstance(backend, Backend):
        return _checked(backend, device), []
    named: dict[str, Backend] = {kind.name: kind() for kind in (DirectBackend, TritonBackend, HostBackend)}
    if backend != "auto" and backend not in named:
        raise LayoutError(
            f"backend has value {backend!r}, must be one of {', '.join(('auto', *named))}; pass one of these",
            field="backend",
        )
    if device.type == "meta":
        raise UnsupportedError("the request table is on the meta device, which holds no data; pass real tensors")
    if backend != "auto":
        return _checked(named[backend], device), []
    host = named[HostBackend.name]
    if device.type == "cpu":
        # The other backends would import Triton, which takes a while and turns on the GIL.
        return host, []
    direct, triton = named[DirectBackend.name].refusal(device), named[TritonBackend.name].refusal(device)
    if direct is None:
        return named[DirectBackend.name], []
    if triton is None:
        return named[TritonBackend.name], [f"no direct launches: {direct}"]
    return host, [f"no kernel: {triton}"]


def _checked(backend: Backend, device: torch.device) -> Backend:
    refusal = backend.refusal(device)
    if refusal is not None:
        raise UnsupportedError(f"backend '{backend.name}' cannot be used: {refusal}; use backend 'auto'")
    return backend
