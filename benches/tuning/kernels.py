"""The kernels that a sweep needs, compiled ahead in parallel, and what each of them uses of a GPU."""

from __future__ import annotations

import itertools
import multiprocessing
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from lib.workload import PAGE_SIZE, RATIO
from qsa_group import FIELDS
from qsa_group.kernel import GroupVariant, KernelVariant, Tiling, compile_variant

__all__ = ["Block", "compile_all", "resources", "variants"]

Block = tuple[int, int, int]
"""Block, wide block and warps of a tiling."""


def variants(mode: str, steps: Sequence[int], blocks: Sequence[Block]) -> list[KernelVariant]:
    """A kernel of each number of steps and each block. Modes other than decode have one step."""
    counts = steps if mode == "decode" else [1]
    return [
        # Lanes are no part of a compiled kernel, so that the block stands for them here.
        KernelVariant((GroupVariant(mode, count, FIELDS, RATIO, PAGE_SIZE, RATIO, Tiling(block[0], *block)),))
        for count, block in itertools.product(counts, blocks)
    ]


def compile_all(wanted: Sequence[KernelVariant], capability: int, workers: int) -> None:
    """Compiles in parallel processes into Triton's disk cache, so that the sweep itself only loads."""
    begin = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        seconds = list(pool.map(partial(_compile_one, capability), wanted))
    print(f"{len(seconds)} kernels compiled in {time.perf_counter() - begin:.1f} s, the longest {max(seconds):.1f} s")


def resources(variant: KernelVariant, capability: int) -> dict[str, int]:
    """Registers, stack, shared and local memory of a kernel, read from its cubin, and the sizes of its code."""
    import triton

    compiled = compile_variant(variant, capability)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        dump = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", dump)}
    return {**usage, "instructions": compiled.asm["ptx"].count(";"), "cubin": len(compiled.asm["cubin"])}


def _compile_one(capability: int, variant: KernelVariant) -> float:
    begin = time.perf_counter()
    compile_variant(variant, capability)
    return time.perf_counter() - begin
