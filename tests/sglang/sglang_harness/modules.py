"""SGLang's module with the QSA backends, and copies of it with classes that nothing has hooked."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

MODULE = "sglang.srt.layers.attention.qwen_sparse_attn_backend"


class _TorchWithoutPinnedMemory(ModuleType):
    """Stands in for `torch` in a module that pins memory, which takes a GPU."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, **options)


def prepare(module: ModuleType) -> ModuleType:
    """Makes a module usable without a server around it and without a GPU."""
    if not torch.cuda.is_available():
        module.torch = _TorchWithoutPinnedMemory()  # type: ignore[attr-defined]
    module.get_spec = lambda: SimpleNamespace(speculative_num_draft_tokens=4)  # type: ignore[attr-defined]
    module.maybe_create_verify_mask = lambda **_: None  # type: ignore[attr-defined]
    return module


def patched() -> ModuleType:
    """SGLang's module, which the plugin hooks."""
    return prepare(importlib.import_module(MODULE))


def copy_of_module(name: str = "unpatched_qsa_backend") -> ModuleType:
    """The same source loaded once more under another name, with classes that nothing has hooked."""
    source = importlib.import_module(MODULE).__file__
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return prepare(module)


def methods(module: Any) -> list[Any]:
    """The six methods that the plugin hooks, as they stand in the classes of a module; None for an inherited one."""
    names = ("init_cuda_graph_state", "init_forward_metadata_out_graph", "init_forward_metadata_in_graph")
    classes = (module.QwenSparseMultiStepDraftBackend, module.QwenSparseAttnBackend)
    return [owner.__dict__.get(name) for owner in classes for name in names]
