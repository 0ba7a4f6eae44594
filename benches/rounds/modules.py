"""SGLang's module with the QSA backends: the one that the plugin hooks, and a copy that nothing hooks."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

__all__ = ["DRAFT_TOKENS", "hooked", "unhooked"]

MODULE = "sglang.srt.layers.attention.qwen_sparse_attn_backend"
DRAFT_TOKENS = 4
"""Draft tokens of a request in target verify and draft extend."""


class _TorchWithoutPinnedMemory(ModuleType):
    """`torch` for a module that pins memory, which takes a GPU."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        del pin_memory
        return torch.zeros(*size, **options)


def hooked() -> ModuleType:
    """The module that the plugin hooks."""
    return _without_server(importlib.import_module(MODULE))


def unhooked(name: str = "unhooked_qsa_backend") -> ModuleType:
    """The same source loaded once more under another name, with classes that nothing hooks."""
    source = importlib.import_module(MODULE).__file__
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return _without_server(module)


def _without_server(module: ModuleType) -> ModuleType:
    """Makes the classes usable without a server around them and, for a dry run, without a GPU."""
    changes: dict[str, Any] = {
        "get_spec": lambda: SimpleNamespace(speculative_num_draft_tokens=DRAFT_TOKENS),
        "maybe_create_verify_mask": lambda **_: None,
    }
    if not torch.cuda.is_available():
        changes["torch"] = _TorchWithoutPinnedMemory()
    for name, value in changes.items():
        setattr(module, name, value)
    return module
