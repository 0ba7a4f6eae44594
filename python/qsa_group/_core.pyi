"""The compiled core. Private: `qsa_group` exports what users need."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import torch
from typing_extensions import Self, disjoint_base

__version__: str
FIELDS: tuple[str, ...]
MODES: tuple[str, ...]
MAX_GROUP_STEPS: int
PADDING_BY_SLOT: int
PAGE_BITS_SHIFT: int
SLOT_OUT_OF_TABLE: int
LENGTH_NOT_POSITIVE: int
LENGTH_EXCEEDS_TABLE: int
ROWS_EXCEED_BUCKET: int
EXTEND_LENGTH_NEGATIVE: int

class _Grid(Protocol):
    @property
    def programs(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def page_bits(self) -> int: ...

class _GroupSize(Protocol):
    @property
    def num_steps(self) -> int: ...
    @property
    def buffers(self) -> Sequence[str]: ...

class _PythonLauncher(Protocol):
    def start(self, index: int, programs: int, words: tuple[int, ...]) -> None: ...

@disjoint_base
class Table:
    """The validated request table."""

    def __new__(
        cls, req_to_token: torch.Tensor, compress_ratio: int, page_size: int, ring_size: int | None = None
    ) -> Self: ...
    @property
    def slots(self) -> int:
        """Request slots of the table."""

    @property
    def width(self) -> int:
        """Tokens of a slot."""

    @property
    def compress_ratio(self) -> int:
        """Tokens of a compressed group."""

    @property
    def page_size(self) -> int:
        """Full-KV tokens of a page."""

    @property
    def ring_size(self) -> int:
        """Entries of a request's pending ring."""

@final
class Group:
    """Steps that share one set of kernel arguments."""

    @property
    def mode(self) -> str: ...
    @property
    def draft_token_num(self) -> int | None: ...
    @property
    def padding(self) -> str: ...
    @property
    def steps(self) -> tuple[int, ...]:
        """Indices of the group's steps, ascending."""

    @property
    def rows(self) -> int:
        """Rows of the group's bucket."""

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that each step has."""

    @property
    def num_pages(self) -> int:
        """Page entries of a row that exist; 0 without page tables."""

@final
class Split:
    """Why a step was kept out of a group, or a group out of a launch."""

    @property
    def step(self) -> int:
        """The step that was kept out; of a group the first step."""

    @property
    def group_of(self) -> int:
        """The first step of the group or launch that the step was kept out of."""

    @property
    def field(self) -> str:
        """What differs, or "overlap", "order", "group size", "launch size"."""

    @property
    def value(self) -> str: ...
    @property
    def other(self) -> str: ...

@final
class Blueprint:
    """What a plan is made from: validated steps in groups, and groups in launches."""

    def __new__(
        cls, table: Table, mode: str, draft_token_num: int | None, padding: str, steps: tuple[Any, ...]
    ) -> Self: ...
    @staticmethod
    def join(parts: Sequence[Blueprint]) -> Blueprint:
        """One blueprint with the steps of several. Up to three of their groups share a launch."""

    @property
    def groups(self) -> list[Group]:
        """The groups, in launch order."""

    @property
    def launches(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the groups of each launch, in launch order."""

    @property
    def splits(self) -> list[Split]:
        """Why steps and groups were kept apart."""

@final
class Kernel:
    """A kernel in one device's context, checked against its own parameter table."""

@final
class Driver:
    """What loads kernels."""

    @staticmethod
    def cuda() -> Driver:
        """The installed CUDA driver."""

    @staticmethod
    def stub(*, fails: bool = False) -> Driver:
        """A driver that does nothing. Its launches succeed, or fail."""

    def load(self, binary: bytes, name: str, num_warps: int, shared: int, groups: Sequence[_GroupSize]) -> Kernel:
        """Loads a kernel over groups into the calling thread's current context. A stub needs no binary.

        Raises:
            UnsupportedError: no driver, no context, or a kernel with other parameters than would be passed.
            LaunchError: the driver refused.
        """

def kernel_arguments(num_steps: int, buffers: Sequence[str]) -> list[tuple[str, int | None]]:
    """Names of a group's kernel arguments, in order, each with the number of its words.

    None stands for a single word, a number for a tuple.
    """

@final
class HostLauncher:
    """Refreshes host memory on the calling thread."""

    def __new__(cls, blueprint: Blueprint, status_word: torch.Tensor) -> Self: ...

@final
class DirectLauncher:
    """Starts each launch by one driver call. `hooked` starts launches while a list of `hooks` is not empty."""

    def __new__(
        cls, table: Table, kernels: Sequence[Kernel], hooks: Sequence[list[Any]], hooked: _PythonLauncher
    ) -> Self: ...

@final
class StagedLauncher:
    """Stages every refresh through the host. `device` and `host` are each a blueprint, its table and its steps."""

    def __new__(
        cls,
        device: tuple[Blueprint, Table, tuple[Any, ...]],
        host: tuple[Blueprint, Table, tuple[Any, ...]],
        status_word: torch.Tensor,
        capturing: Callable[[], bool],
    ) -> Self: ...

@final
class Counters:
    """What the plans of a planner have done."""

    def __new__(cls) -> Self: ...
    @property
    def runs(self) -> int: ...
    @property
    def launches(self) -> int: ...
    @property
    def step_refreshes(self) -> int: ...
    @property
    def overlap_runs(self) -> int: ...
    @property
    def hooked_runs(self) -> int: ...

@final
class Cache:
    """Plans by content."""

    def __new__(cls, capacity: int) -> Self: ...
    def get(self, blueprint: Blueprint) -> Any | None: ...
    def insert(self, blueprint: Blueprint, plan: Plan, may_evict: bool) -> list[Plan]: ...
    def drop(self, plan: Any) -> bool: ...
    def clear(self) -> list[Plan]: ...
    def stats(self) -> dict[str, int]: ...

@disjoint_base
class Plan:
    """The core of a plan."""

    def __new__(
        cls,
        blueprint: Blueprint,
        table: Table,
        steps: tuple[Any, ...],
        status_word: torch.Tensor,
        launcher: HostLauncher | DirectLauncher | StagedLauncher | _PythonLauncher,
        grids: Sequence[_Grid],
        counters: Counters,
    ) -> Self: ...
    def run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        """Refreshes every planned buffer from the live batch, on the stream that is current.

        Compiles, allocates and synchronises nothing, but for the fallbacks that `explain()` names: inputs that overlap
        an output are cloned, tensors that only the host can serve are copied, and Triton's launcher loads itself at its
        first use. An empty batch launches nothing. Rows past the batch are inert.

        Args:
            seq_lens: [batch] int32 or int64, any stride below 4 GiB: length of each request before the draft. In draft
                extend, the length with the extension.
            req_pool_indices: [batch] int32 or int64, any stride below 4 GiB: request slot of each request.
            num_padding: the last so many requests are padding, clamped to 0..batch.
            extend_lens: [batch] int32 or int64, any stride below 4 GiB: accepted rows of each request; draft extend
                only.

        Raises:
            LayoutError: an input that is no tensor, of a wrong dtype or rank, of another length than `seq_lens`,
                misaligned, or with a stride of 4 GiB or more.
            PlanChangedError: an input on another device than planned; `extend_lens` missing, or given to a plan without
                draft extend; memory of the plan that moved.
            CapacityError: more requests than the bucket holds.
            LaunchError: a launch was refused, or a plan that is staged through the host is run during a capture.
        """

    @property
    def blueprint(self) -> Blueprint:
        """What the plan was made from."""

    @property
    def runs(self) -> int:
        """Calls of `run` with at least one request."""

    @property
    def overlap_runs(self) -> int:
        """Runs in which a live input shared memory with an output."""

    @property
    def hooked_runs(self) -> int:
        """Runs in which Triton's launch hooks were set."""
