"""What the rounds were measured on, and how the plugin came into SGLang."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from . import standin
from .bench import Bench
from .modules import hooked

__all__ = ["environment"]


def environment(bench: Bench, stood_in: list[str]) -> dict[str, Any]:
    """GPU, versions and sizes.

    Args:
        bench: the sizes.
        stood_in: packages that something stands in for.
    """
    import triton

    return {
        "gpu": torch.cuda.get_device_name() if bench.on_gpu else "none, dry run on the CPU",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "sglang": _version("sglang"),
        "qsa-group": _version("qsa-group"),
        "python": platform.python_version(),
        "stood_in": stood_in,
        "faked_modules": sorted(standin.FAKED),
        "loaded_by": _load_plugin(),
        "steps": bench.sizes.steps,
        "context": bench.sizes.context,
        "buckets": list(bench.sizes.buckets),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a distribution"


def _load_plugin() -> str:
    """Loads the plugin as SGLang's processes do; says whether that put the hooks in."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    method = hooked().QwenSparseMultiStepDraftBackend.init_forward_metadata_out_graph
    return "SGLang's load_plugins()" if hasattr(method, "__wrapped__") else "install(), no entry point was found"
