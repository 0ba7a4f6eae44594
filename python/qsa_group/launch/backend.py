"""What every backend is: a name, a refusal where it does not work, and the preparation of a plan's launcher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    import qsa_group._core as _core
    from qsa_group.buffers import RequestTable, StepBuffers
    from qsa_group.kernel import Grid

__all__ = ["Backend", "PlanInputs", "Prepared", "PythonLauncher", "Refusal"]


class PythonLauncher(Protocol):
    """What starts launches from Python."""

    def start(self, index: int, programs: int, words: tuple[int, ...]) -> None:
        """Starts the plan's launch `index` over so many programs, with packed argument words."""


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be used here.

    Attributes:
        reason: the reason, as the end of a sentence.
    """

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class PlanInputs:
    """What a launcher is prepared from.

    Attributes:
        blueprint: the validated groups and launches.
        table: the request table.
        steps: the planned buffers of each step.
        status_word: [1] int32 on the table's device.
    """

    blueprint: _core.Blueprint
    table: RequestTable
    steps: tuple[StepBuffers, ...]
    status_word: torch.Tensor


@dataclass(frozen=True)
class Prepared:
    """What starts the launches of a plan.

    Attributes:
        launcher: what the core starts launches by.
        grids: programs of each group.
        backend: name of the backend that the plan got.
        fallbacks: why it is not the backend that was asked for, one sentence each.
    """

    launcher: _core.HostLauncher | _core.DirectLauncher | _core.StagedLauncher | PythonLauncher
    grids: Sequence[Grid]
    backend: str
    fallbacks: tuple[str, ...] = ()

    def with_notes(self, notes: Sequence[str]) -> Prepared:
        """The same, with further fallbacks before its own."""
        return replace(self, fallbacks=(*notes, *self.fallbacks))


class Backend(ABC):
    """A way to start launches."""

    name: ClassVar[str]
    """The public name."""

    @abstractmethod
    def refusal(self, device: torch.device) -> Refusal | None:
        """Why the backend cannot work on tensors of this device; None if it can."""

    @abstractmethod
    def prepare(self, inputs: PlanInputs) -> Prepared:
        """Prepares the launcher of a plan.

        Raises:
            LayoutError: the backend cannot serve these buffers.
            UnsupportedError: a kernel would have to be compiled or loaded inside a capture, or cannot be compiled.
        """

    @abstractmethod
    def warmup(self, table: RequestTable, mode: str, num_steps: int, buffers: tuple[str, ...]) -> None:
        """Compiles and loads the kernels of groups of this size.

        Raises:
            UnsupportedError: a kernel cannot be compiled or loaded.
        """
