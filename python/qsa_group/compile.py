"""The kernel compiled ahead of time, without specialisation.

`triton.compile` on an `ASTSource` with no attributes gives one binary for every value, dtype class and alignment, and
needs neither a GPU nor a driver. Triton keeps compiled code across processes in its own cache; within a process each
variant is compiled once.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from .errors import UnsupportedError

__all__ = ["FIELDS", "KernelVariant", "Shape", "choose_shape", "compile_stats", "compile_variant", "nested_arguments"]

FIELDS = (
    "sequence_lengths",
    "row_req_pool_indices",
    "prefix_lengths",
    "compressed_lengths",
    "write_locs",
    "logical_positions",
    "pending_ring_slots",
    "ring_group_locs",
    "page_table",
)
"""Names of a step's buffers in the order of the kernel's parameters and of the Rust core."""

MODES = {"decode": 0, "target_verify": 1, "draft_extend": 2}

SCALARS = (
    "seq_lens",
    "req_pool_indices",
    "extend_lens",
    "seq_stride",
    "slot_stride",
    "extend_stride",
    "flags",
    "real",
    "req_to_token",
    "table_row_stride",
    "table_col_stride",
    "slots",
    "width",
    "rows",
    "num_pages",
    "page_stride",
    "ring_stride",
    "window",
    "lowest",
    "highest",
    "status",
)
"""The kernel's parameters before the buffers, in order; the Rust core packs them so."""

BLOCK = 256
"""Page table entries that a program handles at a time."""

NUM_WARPS = 4
"""Warps of a program."""

_SCAN = 1024
"""Extend lengths that a program sums at a time; the core bounds a bucket's rows so that a block's sum fits 31 bits."""


@dataclass(frozen=True)
class Shape:
    """How a launch is cut up.

    Attributes:
        splits: programs that divide a row's page table among them.
        shares: programs that divide a row's steps among them.
        block: page table entries that a program handles at a time.
        num_warps: warps of a program.
    """

    splits: int
    shares: int
    block: int
    num_warps: int


@dataclass(frozen=True)
class KernelVariant:
    """What a compiled kernel depends on.

    Attributes:
        mode: "decode", "target_verify" or "draft_extend".
        num_steps: steps of the group.
        buffers: names of the buffers that each step has.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page.
        block: page table entries that a program handles at a time.
        num_warps: warps of a program.
    """

    mode: str
    num_steps: int
    buffers: tuple[str, ...]
    compress_ratio: int
    page_size: int
    block: int
    num_warps: int

    def constants(self) -> dict[str, int]:
        """Values of the kernel's compile-time parameters."""
        return {
            "MODE": MODES[self.mode],
            "RATIO": self.compress_ratio,
            "PAGE_SIZE": self.page_size,
            "STEPS": 1 << (self.num_steps - 1).bit_length(),
            "RING": 1 << (self.compress_ratio - 1).bit_length(),
            "BLOCK": self.block,
            "SCAN": _SCAN,
        }


def choose_shape(rows: int, num_steps: int, max_pages: int) -> Shape:
    """How to cut up a launch over `rows` rows of `num_steps` steps whose page tables have `max_pages` entries.

    Few rows leave most of a GPU idle: then programs divide long page tables, at little cost where few entries are
    live, and from the third step on each step has its own programs. Many rows fill a GPU by themselves: then one
    program does all of a row, and reads the request table once for all steps. `benches/tune.py` measures the choice.
    """
    splits = 16 if rows <= 8 else 8 if rows <= 32 else 4 if rows <= 128 else 1
    shares = num_steps if num_steps > 2 and rows <= 8 else 1
    return Shape(min(splits, -(-max_pages // BLOCK) or 1), shares, BLOCK, NUM_WARPS)


def shapes() -> tuple[Shape, ...]:
    """One shape for each binary that `choose_shape` can lead to."""
    return (Shape(splits=1, shares=1, block=BLOCK, num_warps=NUM_WARPS),)


_lock = threading.Lock()
_compiled: dict[tuple[KernelVariant, int, int], Any] = {}
_seconds = 0.0


def compile_stats() -> tuple[int, float]:
    """Kernels compiled in this process, and the seconds that took."""
    return len(_compiled), _seconds


def compile_variant(variant: KernelVariant, capability: int, device: int = 0) -> Any:
    """Compiles a variant for a compute capability such as 90, or returns it if that was done before.

    Returns:
        Triton's `CompiledKernel`. It loads itself once, on one device, so each device index has its own; Triton's cache
        makes the second one cheap.

    Raises:
        UnsupportedError: Triton is not installed, or cannot compile the kernel.
    """
    global _seconds
    key = (variant, capability, device)
    with _lock:
        if key not in _compiled:
            started = time.perf_counter()
            _compiled[key] = _compile(variant, capability)
            _seconds += time.perf_counter() - started
        return _compiled[key]


def _compile(variant: KernelVariant, capability: int) -> Any:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise UnsupportedError(f"Triton is not usable here ({error}); install triton, or use backend 'host'") from error
    from .kernel import refresh_kernel

    if not isinstance(refresh_kernel, triton.JITFunction):
        raise UnsupportedError("TRITON_INTERPRET is set, so nothing can be compiled; unset it, or use CPU tensors")
    names = [parameter.name for parameter in refresh_kernel.params]
    constants: dict[tuple[int, ...], Any] = {(names.index(name),): value for name, value in variant.constants().items()}
    signature: dict[str, Any] = dict.fromkeys(names, "i64")
    signature.update(dict.fromkeys(variant.constants(), "constexpr"))
    for field in FIELDS:
        if field in variant.buffers:
            signature[field] = ("i64",) * variant.num_steps
        else:
            signature[field] = "constexpr"
            constants[names.index(field),] = None
    signature["offsets"] = ("i64",) * variant.num_steps
    source = ASTSource(fn=refresh_kernel, signature=signature, constexprs=constants, attrs={})
    try:
        return triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": variant.num_warps}
        )
    except Exception as error:
        raise UnsupportedError(
            f"Triton {triton.__version__} cannot compile the refresh kernel ({error}); use backend 'host' or another "
            "Triton"
        ) from error


def nested_arguments(words: tuple[Any, ...], variant: KernelVariant) -> list[Any]:
    """Packed arguments as Triton's launchers take them: a tuple over the steps a buffer, None for an absent one."""
    rest = iter(words[len(SCALARS) :])

    def take() -> tuple[Any, ...]:
        return tuple(next(rest) for _ in range(variant.num_steps))

    buffers = [take() if field in variant.buffers else None for field in FIELDS]
    return [*words[: len(SCALARS)], *buffers, take(), *variant.constants().values()]


def refusal(compiled: Any) -> str | None:
    """Why a compiled kernel must not be started past Triton's own launcher; None if it may be."""
    metadata = compiled.metadata
    checks = (
        (getattr(metadata, "num_ctas", 1) != 1, "it runs in clusters of thread blocks"),
        (getattr(metadata, "launch_pdl", False), "it uses programmatic dependent launch"),
        (getattr(metadata, "launch_cooperative_grid", False), "it is a cooperative launch"),
        (getattr(metadata, "global_scratch_size", 0) > 0, "it needs global scratch memory"),
        (getattr(metadata, "profile_scratch_size", 0) > 0, "it needs profiling scratch memory"),
        (bool(getattr(metadata, "instrumentation_mode", "")), "it is instrumented"),
    )
    return next((reason for found, reason in checks if found), None)
