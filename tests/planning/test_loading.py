"""Loading of kernels, the device stubbed: what one launcher has loaded is not taken for another's."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from qsa_group import FIELDS, UnsupportedError, _core
from qsa_group.kernel import GroupVariant, KernelVariant, Tiling
from qsa_group.launch import Refusal, loading

pytest.importorskip("triton")

DEVICE = torch.device("cuda", 0)


class Compiled:
    """A compiled kernel that counts how often Triton's launcher is loaded."""

    def __init__(self) -> None:
        self.loads = 0
        self.error: Exception | None = None
        self.asm = {"cubin": b"\x7fELF"}
        self.metadata = SimpleNamespace(name="refresh_kernel", num_warps=4, shared=0)

    def _init_handles(self) -> None:
        self.loads += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """The kernel that every variant compiles to, on a machine with a GPU that does not exist."""
    made = Compiled()
    monkeypatch.setattr(loading, "compile_variant", lambda *_: made)
    monkeypatch.setattr(loading, "is_capturing", lambda _: False)
    monkeypatch.setattr(loading, "capability", lambda _: 90)
    monkeypatch.setattr(loading, "_core", SimpleNamespace(Driver=SimpleNamespace(cuda=_core.Driver.stub)))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    return made


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> KernelVariant:
    """A variant that no other test loads: loaded kernels stay as long as the process."""
    number = 1000 + abs(hash(request.node.nodeid)) % 1_000_000
    return KernelVariant((GroupVariant("decode", 2, FIELDS, number, number * 8, number, Tiling(128, 128, 1024, 4)),))


def test_triton_is_loaded_even_after_a_direct_plan(compiled: Compiled, variant: KernelVariant) -> None:
    direct = loading.load_by_driver(variant, DEVICE)
    assert isinstance(direct, loading.LoadedKernel)
    assert compiled.loads == 0, "a direct plan does not need Triton's launcher"
    for _ in range(2):
        assert loading.load_by_triton(variant, DEVICE) is compiled
    assert compiled.loads == 1
    assert loading.load_by_driver(variant, DEVICE) is direct


def test_a_kernel_that_needs_tritons_launcher_is_refused_with_the_reason(
    compiled: Compiled, variant: KernelVariant
) -> None:
    compiled.metadata.num_ctas = 2
    refusal = loading.load_by_driver(variant, DEVICE)
    assert isinstance(refusal, Refusal)
    assert "clusters" in refusal.reason


@pytest.mark.parametrize("error", [RuntimeError("Failed to find C compiler"), OSError("read-only file system")])
def test_a_launcher_that_cannot_be_loaded_is_unsupported(
    compiled: Compiled, variant: KernelVariant, error: Exception
) -> None:
    """sgl-project/sglang issue 1067, vllm-project/vllm issue 2997. And the next attempt is made anew."""
    compiled.error = error
    with pytest.raises(UnsupportedError, match=str(error)):
        loading.load_by_triton(variant, DEVICE)
    compiled.error = None
    assert loading.load_by_triton(variant, DEVICE) is compiled


def test_nothing_is_loaded_in_a_capture(
    compiled: Compiled, variant: KernelVariant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "is_capturing", lambda _: True)
    for load in (loading.load_by_driver, loading.load_by_triton):
        with pytest.raises(UnsupportedError, match=r"a kernel for 2 steps is not loaded on cuda:0 and a capture is on"):
            load(variant, DEVICE)
    monkeypatch.setattr(loading, "is_capturing", lambda _: False)
    loading.load_by_triton(variant, DEVICE)
    monkeypatch.setattr(loading, "is_capturing", lambda _: True)
    assert loading.load_by_triton(variant, DEVICE) is compiled
