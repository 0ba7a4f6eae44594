"""What this machine can run, and the marks that say so."""

from __future__ import annotations

import os

import pytest
import torch

__all__ = ["HAS_GPU", "INTERPRETED", "ON_CPU", "ON_GPU", "needs_gpu", "needs_interpreter"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_GPU = torch.cuda.is_available() and not INTERPRETED

needs_gpu = pytest.mark.skipif(
    not HAS_GPU, reason="no CUDA device" if not torch.cuda.is_available() else "TRITON_INTERPRET=1"
)
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set")

ON_CPU = [
    pytest.param(("host", "cpu"), id="host"),
    pytest.param(("triton", "cpu"), id="interpreter", marks=[pytest.mark.interpreter, needs_interpreter]),
]
ON_GPU = [
    pytest.param(("triton", "cuda"), id="triton", marks=[pytest.mark.gpu, needs_gpu]),
    pytest.param(("direct", "cuda"), id="direct", marks=[pytest.mark.gpu, needs_gpu]),
]
