"""The ways of running the product that this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from helpers.machine import INTERPRETED, ON_CPU, ON_GPU, needs_gpu

if TYPE_CHECKING:
    from helpers.harness import Backend

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
