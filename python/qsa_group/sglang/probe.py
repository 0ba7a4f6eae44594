"""Whether the plugin knows the SGLang that is installed.

Names, signatures and fields decide, not the version. A fork or a later release that kept them is hooked. One that
changed them is left alone, and the error names every change. The probe cannot see a formula that changed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from qsa_group import QsaGroupError

from .phase import FORWARD_MODES

__all__ = ["BACKEND_CLASS", "BACKEND_MODULE", "CONTAINER_CLASS", "HOOKED_METHODS", "ProbeError", "SGLangParts", "probe"]

BACKEND_MODULE = "sglang.srt.layers.attention.qwen_sparse_attn_backend"
CONTAINER_CLASS = "QwenSparseMultiStepDraftBackend"
BACKEND_CLASS = "QwenSparseAttnBackend"

HOOKED_METHODS = {
    "init_cuda_graph_state": ("self", "max_bs", "max_num_tokens"),
    "init_forward_metadata_out_graph": ("self", "forward_batch", "in_capture"),
    "init_forward_metadata_in_graph": ("self", "forward_batch"),
}
"""The hooked methods of both classes, with the parameters that the hooks take."""

_CALLED_METHODS = {
    BACKEND_CLASS: {
        "_can_replay_with_gpu_kernels": ("self", "metadata", "seq_lens"),
        "_capture_cuda_graph_metadata": (
            "self",
            "bs",
            "num_tokens",
            "req_pool_indices",
            "seq_lens",
            "forward_mode",
            "spec_info",
        ),
        "_capture_extend_seq_lens": ("forward_batch",),
        "_replay_cuda_graph_metadata": (
            "self",
            "bs",
            "req_pool_indices",
            "seq_lens",
            "forward_mode",
            "spec_info",
            "seq_lens_cpu",
            "num_padding",
        ),
        "_replay_cuda_graph_metadata_gpu": (
            "self",
            "metadata",
            "bs",
            "req_pool_indices",
            "seq_lens",
            "forward_mode",
            "spec_info",
            "seq_lens_cpu",
            "num_padding",
            "seq_offset",
        ),
        "_stage_extend_lens": ("self", "spec_info", "bs", "num_tokens"),
        "should_reuse_mtp_sparse_indices": ("self", "forward_batch"),
    },
    CONTAINER_CLASS: {
        "_make_step_forward_batch": ("self", "forward_batch", "step", "num_padding"),
        "set_mtp_shared_sparse_indices": ("self", "state"),
    },
}
"""Methods that the plugin calls, and methods whose meaning the refresh depends on."""

_FIELDS = {
    "QwenSparseAttnMetadata": {
        "sequence_lengths",
        "token_to_batch_idx",
        "token_slot_table",
        "indexer_metadata",
        "row_req_pool_indices",
        "is_cuda_graph",
        "fa2_valid_counts",
        "fa2_cu_seqlens_k",
        "fa2_cu_seqlens_q",
    },
    "QSAIndexerMetadata": {
        "sequence_lengths",
        "token_to_batch_idx",
        "token_slot_table",
        "out_cache_loc",
        "token_to_kv_pool",
        "compress_ratio",
        "block_topk",
        "req_pool_indices",
        "write_locs",
        "compress_group_positions",
        "compress_sequence_ids",
        "compress_member_rows",
        "is_cuda_graph",
        "graph_write_locs",
        "graph_compressed_page_table",
        "graph_compressed_lengths",
        "graph_prefix_lengths",
        "decode_page_table",
        "decode_lengths",
        "decode_logical_positions",
        "pending_ring_slots",
        "compress_group_ring_locs",
        "extend_rope_matrix",
        "graph_ring_group_locs",
        "defer_block_expansion",
        "prefill_sequence_lengths_cpu",
    },
}
"""All fields of the metadata. A field that is not listed here may be a buffer that the plugin would not refresh."""


class ProbeError(QsaGroupError):
    """The plugin does not know this SGLang.

    Attributes:
        problems: what is missing or new, one entry each.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class SGLangParts:
    """The parts of SGLang that the hooks need.

    Attributes:
        module: the module with both classes.
        container: the class that holds a backend for each draft step.
        backend: the class of one draft step, of target verify and of draft extend.
        forward_mode: SGLang's ``ForwardMode``.
        registry: SGLang's ``HookRegistry``.
        hook_type: SGLang's ``HookType``.
        hook_source: SGLang's ``HookSource``.
    """

    module: ModuleType
    container: type[Any]
    backend: type[Any]
    forward_mode: Any
    registry: Any
    hook_type: Any
    hook_source: Any


def probe(module_name: str = BACKEND_MODULE) -> SGLangParts:
    """Looks at the module with SGLang's QSA backends.

    Args:
        module_name: where the two classes are.

    Raises:
        ProbeError: with everything that does not fit.
    """
    plugins = _imported("sglang.srt.plugins.hook_registry")
    module = _imported(module_name)
    problems = _missing(plugins, ("HookRegistry", "HookType", "HookSource"))
    problems += _missing(module, (CONTAINER_CLASS, BACKEND_CLASS, "ForwardMode", *_FIELDS))
    if problems:
        raise ProbeError(problems)
    for class_name in (CONTAINER_CLASS, BACKEND_CLASS):
        methods = {**HOOKED_METHODS, **_CALLED_METHODS[class_name]}
        problems += _method_problems(getattr(module, class_name), methods)
    for class_name, fields in _FIELDS.items():
        problems += _field_problems(getattr(module, class_name), fields)
    problems += _missing(module.ForwardMode, tuple(FORWARD_MODES.values()))
    if problems:
        raise ProbeError(problems)
    return SGLangParts(
        module=module,
        container=getattr(module, CONTAINER_CLASS),
        backend=getattr(module, BACKEND_CLASS),
        forward_mode=module.ForwardMode,
        registry=plugins.HookRegistry,
        hook_type=plugins.HookType,
        hook_source=plugins.HookSource,
    )


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:  # A half-installed engine fails in many ways. None of them may take SGLang down.
        raise ProbeError([f"{name} cannot be imported ({type(error).__name__}: {error})"]) from error


def _missing(owner: Any, names: tuple[str, ...]) -> list[str]:
    owner_name = getattr(owner, "__name__", repr(owner))
    return [f"{owner_name} has no {name}" for name in names if not hasattr(owner, name)]


def _method_problems(owner: type[Any], methods: dict[str, tuple[str, ...]]) -> list[str]:
    problems = _missing(owner, tuple(methods))
    for name, known in methods.items():
        method = inspect.getattr_static(owner, name, None)
        if method is None:
            continue
        # `signature` sees through the wrappers of other plugins.
        parameters = tuple(inspect.signature(getattr(method, "__func__", method)).parameters)
        if parameters != known:
            problems.append(f"{owner.__name__}.{name} takes ({', '.join(parameters)}), known is ({', '.join(known)})")
    return problems


def _field_problems(owner: type[Any], known: set[str]) -> list[str]:
    fields = set(getattr(owner, "__struct_fields__", ()))
    problems = [f"{owner.__name__} has no field {name}" for name in sorted(known - fields)]
    problems += [f"{owner.__name__} has the unknown field {name}" for name in sorted(fields - known)]
    return problems
