"""What torch tells of CUDA devices."""

from __future__ import annotations

import torch

__all__ = ["capability", "is_capturing"]


def is_capturing(device: torch.device) -> bool:
    """Whether the device's current stream is recording a CUDA graph. Captures of other threads are not seen."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def capability(device: torch.device) -> int:
    """Compute capability of a device as Triton writes it, such as 90."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
