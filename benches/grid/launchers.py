"""Other launchers of the very kernel that a plan starts: Triton's C launcher and torch's static launcher."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lib.timing import Call, LiveSet
from qsa_group import ReplayPlan, ReplayPlanner
from qsa_group.kernel import KernelVariant, compile_variant
from qsa_group.launch import PlanInputs, Prepared, TritonBackend

__all__ = ["RecordedLaunch", "RecordingBackend", "c_launcher", "recorded_launch", "torch_static"]


class Recorder:
    """Keeps what each launch of a plan would be started with, and starts nothing.

    Attributes:
        variants: the kernel variant of each launch.
        starts: programs and packed words of each launch, by the launch's index.
    """

    def __init__(self, variants: Sequence[KernelVariant]) -> None:
        self.variants = variants
        self.starts: dict[int, tuple[int, tuple[int, ...]]] = {}

    def start(self, index: int, programs: int, words: tuple[int, ...]) -> None:
        """Keeps a launch."""
        self.starts[index] = (programs, words)


class RecordingBackend(TritonBackend):
    """Triton's backend, whose launches are recorded and not started. One plan a backend.

    Attributes:
        recorder: what the plan's launches are recorded by.
    """

    recorder: Recorder

    def prepare(self, inputs: PlanInputs) -> Prepared:
        """See `Backend.prepare`. The kernels are loaded as Triton's backend loads them."""
        launches = self.variants(inputs)
        for variant in launches.variants:
            self.load(variant, inputs.table)
        self.recorder = Recorder(launches.variants)
        return Prepared(self.recorder, launches.grids, self.name)


@dataclass(frozen=True)
class RecordedLaunch:
    """The first launch of a plan: the compiled kernel, and what one launch takes.

    Attributes:
        compiled: Triton's `CompiledKernel`.
        programs: programs of the launch.
        arguments: as Triton's launchers take them: nested, with compile-time values.
        words: as the binary takes them: flat, with None for each scratch pointer.
        types: type letters of the words, as torch's launcher takes them.
        plan: the plan that was recorded. It owns the status word that the launch writes.
    """

    compiled: Any
    programs: int
    arguments: list[Any]
    words: list[int | None]
    types: str
    plan: ReplayPlan


def recorded_launch(
    plan: ReplayPlan, inputs: LiveSet, capability: int, backend: RecordingBackend | None = None
) -> RecordedLaunch:
    """The first launch of a plan for these inputs.

    Args:
        plan: a plan of one group.
        inputs: as `ReplayPlan.run` takes them. The launch reads these very tensors.
        capability: compute capability of the plan's device, such as 90.
        backend: records the launch.
    """
    backend = RecordingBackend() if backend is None else backend
    planner = ReplayPlanner(plan.table, backend=backend)
    draft_token_num = plan.blueprint.groups[0].draft_token_num
    same = planner.plan(plan.steps, plan.mode, draft_token_num=draft_token_num, padding=plan.padding)
    same.run(*inputs)
    variant = backend.recorder.variants[0]
    programs, words = backend.recorder.starts[0]
    compiled = compile_variant(variant, capability, plan.device.index or 0)
    kinds = [kind for kind in _flat(tuple(compiled.src.signature.values())) if kind != "constexpr"]
    if len(kinds) != len(words):
        raise RuntimeError(f"{len(words)} argument words for a signature of {len(kinds)}")
    scratch = sum(hasattr(compiled.metadata, name) for name in ("global_scratch_size", "profile_scratch_size"))
    return RecordedLaunch(
        compiled=compiled,
        programs=programs,
        arguments=variant.arguments(words),
        words=[*words, *[None] * scratch],
        types="".join("O" if kind.startswith("*") else "l" for kind in kinds) + "O" * scratch,
        plan=same,
    )


def c_launcher(launch: RecordedLaunch) -> Call:
    """The launcher that Triton built for the kernel, called with prebuilt arguments."""
    # Asking for `run` loads the kernel. `function` is there only after that.
    run = launch.compiled.run
    packed = launch.compiled.packed_metadata
    function = launch.compiled.function
    stream = torch.cuda.current_stream().cuda_stream
    programs, arguments = launch.programs, tuple(launch.arguments)

    def call(*_: Any) -> None:
        run(programs, 1, 1, stream, function, packed, None, None, None, *arguments)

    return call


def torch_static(launch: RecordedLaunch) -> Call:
    """The static launcher of torch, below its front, which takes no tuples."""
    from torch._C import _StaticCudaLauncher

    metadata = launch.compiled.metadata
    device = torch.cuda.current_device()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(launch.compiled.asm["cubin"])
        function, *_rest = _StaticCudaLauncher._load_kernel(str(path), metadata.name, metadata.shared, device)
    stream = torch.cuda.current_stream().cuda_stream
    start = _StaticCudaLauncher._launch_kernel
    programs, types, words = launch.programs, launch.types, tuple(launch.words)
    warps, shared = metadata.num_warps, metadata.shared
    if len(types) != len(words):
        raise ValueError(f"{len(types)} types for {len(words)} words")

    def call(*_: Any) -> None:
        start(function, programs, 1, 1, warps, shared, types, words, stream)

    return call


def _flat(values: Any) -> list[Any]:
    """Nested tuples depth first, as Triton passes them to a kernel."""
    return [leaf for value in values for leaf in _flat(value)] if isinstance(values, tuple) else [values]
