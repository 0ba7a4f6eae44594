"""Loading of kernels, the device stubbed: what one way of launching has loaded is not taken for another's."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from qsa_group import _core, launchers
from qsa_group.variants import FIELDS, KernelVariant

pytest.importorskip("triton")

VARIANT = KernelVariant("decode", 2, FIELDS, 4, 64, 128, 1024, 4)


class Compiled:
    """A compiled kernel that counts how often Triton's launcher is loaded."""

    def __init__(self) -> None:
        self.loads = 0
        self.asm = {"cubin": b"\x7fELF"}
        self.metadata = type("Metadata", (), {"name": "refresh_kernel", "num_warps": 4, "shared": 0})

    def _init_handles(self) -> None:
        self.loads += 1


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    made = Compiled()

    class Kernel:
        def __new__(cls, _cubin: bytes, *numbers: Any) -> Any:
            return _core_kernel(b"", *numbers, driver="stub")

    _core_kernel = _core.Kernel
    monkeypatch.setattr(launchers, "_loaded", {})
    monkeypatch.setattr(launchers, "compile_variant", lambda *_: made)
    monkeypatch.setattr(launchers, "capturing", lambda _: False)
    monkeypatch.setattr(launchers, "capability", lambda _: 90)
    monkeypatch.setattr(_core, "Kernel", Kernel)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    return made


def test_triton_is_loaded_even_after_a_direct_plan(compiled: Compiled) -> None:
    device = torch.device("cuda", 0)
    _, direct = launchers.load_kernel(VARIANT, device, "cuda")
    assert not isinstance(direct, str)
    assert compiled.loads == 0, "a direct plan does not need Triton's launcher"
    for _ in range(2):
        _, refused = launchers.load_kernel(VARIANT, device, "cuda", by_triton=True)
        assert isinstance(refused, str), "nothing is loaded beside Triton's launcher"
    assert compiled.loads == 1
    assert launchers.load_kernel(VARIANT, device, "cuda")[1] is direct


def test_refused_kernel_has_tritons_launcher_loaded(compiled: Compiled) -> None:
    compiled.metadata.num_ctas = 2
    _, refused = launchers.load_kernel(VARIANT, torch.device("cuda", 0), "cuda")
    assert "clusters" in str(refused)
    assert compiled.loads == 1
