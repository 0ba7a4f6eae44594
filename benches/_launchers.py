"""Other ways to start a compiled kernel, an empty kernel, and counters of what a process launches and compiles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

PAGE_SIZE = tl.constexpr(64)


@triton.jit
def _nothing():
    pass


def empty_kernel() -> Callable[..., None]:
    """An empty Triton kernel of one program, without parameters, started through Triton's front."""
    launch = _nothing[(1,)]

    def call(*_: Any) -> None:
        launch(num_warps=1)

    return call


@triton.jit
def _copy(
    seq_lens, req_pool_indices, req_to_token, width, page_tables, page_stride, block: tl.constexpr, steps: tl.constexpr
):
    row = tl.program_id(0)
    length = tl.load(seq_lens + row)
    slot = tl.load(req_pool_indices + row).to(tl.int64)
    page = tl.program_id(1) * block + tl.arange(0, block)
    live = page * PAGE_SIZE < length
    entry = tl.load(req_to_token + slot * width + page * PAGE_SIZE, live, other=0)
    for step in tl.static_range(steps):
        tl.store(page_tables[step] + row * page_stride + page, entry // PAGE_SIZE, live)


def copy_kernel(table: torch.Tensor, page_tables: Sequence[torch.Tensor], live: int, block: int) -> Callable[..., None]:
    """The least that any refresh with page tables must do, specialised for one shape, and nothing else.

    A row's length and slot, the request table at each page, each step's page table. No offsets, no other buffer, no
    check of what the inputs hold; a page a thread, `block` a program.
    """
    rows, stride = page_tables[0].shape[0], page_tables[0].stride(0)
    launch = _copy[rows, max(-(-live // (block * PAGE_SIZE.value)), 1)]
    tables, warps = tuple(page_tables), block // 32

    def call(seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, *_: Any) -> None:
        launch(seq_lens, req_pool_indices, table, table.shape[1], tables, stride, block, len(tables), num_warps=warps)

    return call


def c_launcher(compiled: Any, grid: Sequence[int], arguments: Sequence[Any]) -> Callable[..., None]:
    """The launcher that Triton built for a compiled kernel, called with prebuilt arguments."""
    run = compiled.run
    packed = compiled.packed_metadata
    function = compiled.function
    stream = torch.cuda.current_stream().cuda_stream
    x, y, z = (*grid, 1, 1)[:3]
    ready = tuple(arguments)

    def call(*_: Any) -> None:
        run(x, y, z, stream, function, packed, None, None, None, *ready)

    return call


def torch_static(compiled: Any, grid: Sequence[int], words: Sequence[int | None], types: str) -> Callable[..., None]:
    """The static launcher of torch for a compiled kernel, below its front that takes no tuples."""
    from torch._C import _StaticCudaLauncher  # type: ignore[attr-defined]

    metadata = compiled.metadata
    device = torch.cuda.current_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        function, *_rest = _StaticCudaLauncher._load_kernel(str(path), metadata.name, metadata.shared, device)
    stream = torch.cuda.current_stream().cuda_stream
    launch = _StaticCudaLauncher._launch_kernel
    x, y, z = (*grid, 1, 1)[:3]
    warps, shared, ready = metadata.num_warps, metadata.shared, tuple(words)
    if len(types) != len(ready):
        raise ValueError(f"{len(types)} types for {len(ready)} arguments")

    def call(*_: Any) -> None:
        launch(function, x, y, z, warps, shared, types, ready, stream)

    return call


def launches_of(call: Callable[[], Any], rounds: int = 10) -> dict[str, float]:
    """Driver and runtime calls a round that start work, by name, as the profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    counts: dict[str, float] = {}
    for event in profiler.events():
        name = event.name
        if "Launch" in name and name.startswith(("cuda", "cu")):
            counts[name] = counts.get(name, 0) + 1 / rounds
    return {name: round(count, 2) for name, count in counts.items()}


@dataclass
class CompileCounter:
    """Counts what Triton compiles and loads while it is active, whoever asks for it."""

    jit: int = 0
    compiled: int = 0
    loaded: int = 0
    names: list[str] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def __enter__(self) -> CompileCounter:
        from triton import knobs

        self._swap(knobs.runtime, "jit_post_compile_hook", self._on_jit)
        self._swap(knobs.compilation, "listener", self._on_compile)
        self._swap(knobs.runtime, "kernel_load_end_hook", self._on_load)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    @property
    def total(self) -> int:
        """Compiles. One that a launch asked for shows in both counts, one ahead of time in the second alone."""
        return max(self.jit, self.compiled)

    def _swap(self, owner: Any, name: str, hook: Callable[..., None]) -> None:
        before: Any = getattr(owner, name, None)
        if hasattr(before, "add") and hasattr(before, "remove"):  # a chain of hooks, Triton 3.5 and later
            before.add(hook)
            self._undo.append(lambda: before.remove(hook))
        elif hasattr(type(owner), name) or hasattr(owner, name):
            setattr(owner, name, hook)
            self._undo.append(lambda: setattr(owner, name, before))

    def _on_jit(self, *_: Any, **more: Any) -> None:
        self.jit += 1
        self.names.append(str(getattr(more.get("fn"), "name", "?")))

    def _on_compile(self, *_: Any, **__: Any) -> None:
        self.compiled += 1

    def _on_load(self, *_: Any, **__: Any) -> None:
        self.loaded += 1
