"""What figures were measured on."""

from __future__ import annotations

import platform
import subprocess
from typing import Any

import torch

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """GPU, driver and versions. A package that is not installed has the version None."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "machine": platform.machine(),
    }
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        facts["triton"] = None
    try:
        import qsa_group

        facts["qsa_group"] = getattr(qsa_group, "__version__", None)
    except ImportError:
        facts["qsa_group"] = None
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["capability"] = list(torch.cuda.get_device_capability())
        facts["driver"] = _driver_version()
    return facts


def _driver_version() -> str | None:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
