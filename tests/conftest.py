"""The ways of running the product that this machine has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from helpers.harness import Backend

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

settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("interpreter", settings.get_profile("default"), max_examples=12)
settings.load_profile("interpreter" if INTERPRETED else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/gpu needs a GPU."""
    for item in items:
        if "gpu" in item.path.parent.parts[-1:]:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(needs_gpu)


def _backend(request: pytest.FixtureRequest) -> Any:
    from helpers.harness import Backend

    return Backend(*request.param)


@pytest.fixture(scope="session", params=[*ON_CPU, *ON_GPU])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend that can run here; the others are skipped with the reason."""
    return _backend(request)


@pytest.fixture(scope="session", params=ON_GPU)
def gpu_backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend of a GPU."""
    return _backend(request)
