"""Stands in for compiled or large packages that SGLang imports and that the QSA metadata never calls.

SGLang's unmodified classes can then be imported where these packages cannot be had. Call `install` before SGLang is
imported. `FAKED` then names the modules that were stood in for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

__all__ = ["FAKED", "PACKAGES", "install"]

PACKAGES = (
    "sgl_kernel",
    "flashinfer",
    "flash_attn",
    "mistral_common",
    "gguf",
    "compressed_tensors",
    "torch_memory_saver",
    "tvm_ffi",
)
"""Packages that SGLang 0.5.23 imports with its QSA backends, and that the backends' metadata does not need."""

FAKED: set[str] = set()


class _Anything(type):
    """A class that has every attribute, and can be called, subscripted, joined and used as a decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        decorated = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], type)
        return args[0] if decorated else _anything("result")

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __bool__(cls) -> bool:
        return False


def _anything(name: str) -> Any:
    return _Anything(name, (), {})


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012  a package, so that its submodules are looked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _anything(name)
        setattr(self, name, value)
        return value


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__version__ = "999.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        FAKED.add(module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = frozenset(roots)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.roots:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def install(packages: Sequence[str] = PACKAGES) -> list[str]:
    """Stands in for the packages that are not installed, and returns their names."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    # Last in the list, so that a package that is installed is taken as it is.
    sys.meta_path.append(_Finder(missing))
    return missing
