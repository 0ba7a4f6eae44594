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
"""Names of a step's buffers in the order of the Rust core."""

MODES = {"decode": 0, "target_verify": 1, "draft_extend": 2}

_SCAN = 1024
"""Extend lengths that a program sums at a time; the core bounds a bucket's rows so that a block's sum fits 31 bits."""

_FEWEST_ROWS = 2
"""Rows up to which programs enough are started for a million tokens a row."""

_FEW_ROWS = 8
"""Rows up to which a launch of one decode step has larger programs."""

_PROGRAMS = 128
"""Programs that divide page tables, about, where each row has more than two: one for each multiprocessor."""

_WARP = 32
"""Threads of a warp, on all NVIDIA GPUs."""


@dataclass(frozen=True)
class Shape:
    """How a launch is cut up.

    Attributes:
        lanes: first page table entries of a row that have a lane each, a power of two: at least a block, unless that is
            more than there are.
        block: page table entries that a program handles first, a lane each.
        wide: page table entries that a program handles at a time after those.
        num_warps: warps of a program.
    """

    lanes: int
    block: int
    wide: int
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
        block: page table entries that a program handles first.
        wide: page table entries that a program handles at a time after those.
        num_warps: warps of a program.
    """

    mode: str
    num_steps: int
    buffers: tuple[str, ...]
    compress_ratio: int
    page_size: int
    block: int
    wide: int
    num_warps: int

    @property
    def fields(self) -> tuple[str, ...]:
        """The buffers of a step but its page table, in order."""
        return tuple(name for name in FIELDS[:-1] if name in self.buffers)

    @property
    def ring(self) -> int:
        """Lanes of a row: the power of two at or above its ring group locations, 1 without those."""
        return 1 << (self.compress_ratio - 1).bit_length() if "ring_group_locs" in self.buffers else 1

    @property
    def rows(self) -> int:
        """Rows of a head: as many as its threads have lanes for."""
        return max(_WARP * self.num_warps // self.ring, 1)

    def constants(self) -> dict[str, int]:
        """Values of the kernel's compile-time parameters."""
        return {
            "MODE": MODES[self.mode],
            "RATIO": self.compress_ratio,
            "PAGE_SIZE": self.page_size,
            "STEPS": self.num_steps,
            "ROWS": self.rows,
            "RING": self.ring,
            "BLOCK": self.block,
            "BLOCK_BITS": self.block.bit_length() - 1,
            "WIDE": self.wide,
            "SCAN": _SCAN,
            "FIELDS": len(self.fields),
            **{name.upper(): self.fields.index(name) if name in self.fields else -1 for name in FIELDS[:-1]},
        }

    def tuples(self) -> dict[str, int]:
        """Words of each parameter that is a tuple; None is passed for one without any."""
        return {
            "offsets": (self.num_steps + 1) // 2,
            "page_table": self.num_steps * ("page_table" in self.buffers),
            "fields": self.num_steps * len(self.fields),
        }

    def cut(self, rows: int, lanes: int) -> tuple[int, int, int]:
        """Programs of a launch over `rows` rows, those of them that are heads, and the log2 of `lanes`."""
        heads = 0 if self.mode == "draft_extend" else -(-rows // self.rows) * self.num_steps
        walkers = -(-rows * lanes // self.block) if "page_table" in self.buffers or not heads else 0
        return heads + walkers, heads, lanes.bit_length() - 1


def choose_shape(mode: str, num_steps: int, rows: int, max_pages: int) -> Shape:
    """How to cut up a launch over `rows` rows of `num_steps` steps whose page tables have `max_pages` entries.

    A program writes the first entries of a row at once and others in a loop. Few rows leave most of a GPU idle: then
    programs divide long page tables, at little cost where few entries are live. Many rows fill a GPU by themselves.
    `benches/tune.py` measures the choice.
    """
    block, wide, num_warps = _program(mode, num_steps, rows)
    if rows <= _FEWEST_ROWS:
        most = 1 << 14
    elif rows <= 2 * _FEWEST_ROWS:
        most = 1 << 12
    else:
        most = max(1 << (_PROGRAMS * block // rows).bit_length() >> 1, 128)
    lanes = min(most, 1 << max(max_pages - 1, 0).bit_length())
    # In draft extend a program has one row.
    return Shape(max(lanes, block) if mode == "draft_extend" else lanes, block, wide, num_warps)


def _program(mode: str, num_steps: int, rows: int) -> tuple[int, int, int]:
    """Block, wide block and warps of a program: small ones start soonest, and leave few threads without an entry.

    A single step does less for each entry; with few rows, larger programs read a long table sooner.
    """
    if mode == "draft_extend":
        return 128, 512, 4
    if mode == "decode" and num_steps == 1 and rows <= _FEW_ROWS:
        return (128, 1024, 4) if rows <= _FEWEST_ROWS else (256, 1024, 8)
    return 64, 256, 2


def shapes_of_binaries(mode: str, num_steps: int) -> set[Shape]:
    """A shape for each binary that `choose_shape` leads to; which lanes it has does not count for that."""
    return {choose_shape(mode, num_steps, rows, 1) for rows in (_FEWEST_ROWS, _FEW_ROWS, _FEW_ROWS + 1)}


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
    for name, words in variant.tuples().items():
        signature[name] = ("i64",) * words or "constexpr"
        if not words:
            constants[names.index(name),] = None
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
    """Packed arguments as Triton's launchers take them: tuples, and None for one that is empty."""
    from .kernel import refresh_kernel

    rest = iter(words)
    tuples, constants = variant.tuples(), variant.constants()

    def take(name: str) -> Any:
        return tuple(next(rest) for _ in range(tuples[name])) or None if name in tuples else next(rest)

    return [constants[name] if name in constants else take(name) for name in refresh_kernel.arg_names]


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
