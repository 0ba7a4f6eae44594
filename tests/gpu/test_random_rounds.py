"""Random rounds on the GPU, bit for bit against the oracle and against SGLang's own kernels.

QSA_GROUP_GPU_ROUNDS sets the rounds of each test (default 300; 10,000 before a release).
"""

from __future__ import annotations

import os

import pytest

from helpers import sglang_kernels
from helpers.harness import Backend
from helpers.many_rounds import COMBOS, against_reference, against_sglang

ROUNDS = int(os.environ.get("QSA_GROUP_GPU_ROUNDS", "300"))
SEED = 20_260_000


def share(mode: str) -> int:
    """Rounds of each combo."""
    return -(-ROUNDS // len(COMBOS[mode]))


@pytest.mark.parametrize("padding", ["count", "slot"])
@pytest.mark.parametrize("mode", COMBOS)
def test_rounds_against_the_oracle(gpu_backend: Backend, mode: str, padding: str) -> None:
    for number, combo in enumerate(COMBOS[mode]):
        against_reference(gpu_backend, combo, share(mode), SEED + number, padding)


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mode", "fused"), [("decode", True), *((mode, False) for mode in COMBOS)], ids=lambda v: str(v).lower()
)
def test_rounds_against_the_kernels_of_sglang(gpu_backend: Backend, mode: str, fused: bool) -> None:
    module = sglang_kernels.load()
    if module is None:
        pytest.skip("no SGLang here: install it, or set QSA_GROUP_SGLANG_PATH to its unpacked wheel")
    for number, combo in enumerate(combo for combo in COMBOS[mode] if combo.ring is None):
        against_sglang(module, gpu_backend, combo, share(mode), SEED + number, fused)
