"""The compiled core. Private: `qsa_group` re-exports what users need."""

from typing import Any, final

import torch
from typing_extensions import Self, disjoint_base

__version__: str
MAX_GROUP_STEPS: int

def uses_exchange_api() -> bool:
    """Whether live tensors are read through DLPack's exchange table (torch 2.10 on) rather than through attributes."""

def noop(
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    num_padding: int = 0,
    extend_lens: torch.Tensor | None = None,
) -> None:
    """Takes what `Plan.run` takes and does nothing: what a call from Python costs by itself."""

@final
class Table:
    """The validated request table."""

    def __new__(cls, req_to_token: torch.Tensor, compress_ratio: int, page_size: int) -> Self: ...
    @property
    def memory(self) -> torch.Tensor: ...
    @property
    def slots(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def compress_ratio(self) -> int: ...
    @property
    def page_size(self) -> int: ...

@final
class Request:
    """A validated plan request, with its groups."""

    def __new__(
        cls, table: Table, mode: str, draft_token_num: int | None, padding: str, steps: tuple[Any, ...]
    ) -> Self: ...
    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Step indices of each launch, in launch order."""

    @property
    def splits(self) -> list[dict[str, Any]]:
        """Why steps were kept out of groups: step, group_of, field, value, other."""

    @property
    def group_rows(self) -> list[int]:
        """Rows of each group."""

    @property
    def group_buffers(self) -> list[list[str]]:
        """Names of the buffers that each group has."""

    @property
    def group_pages(self) -> list[int]:
        """Page entries of a row that each group's launch has; 0 without page tables."""

@final
class Kernel:
    """A compiled kernel, loaded into the calling thread's current context and checked against its parameter table."""

    def __new__(
        cls,
        binary: bytes,
        name: str,
        num_warps: int,
        shared: int,
        groups: list[tuple[int, int]],
        scratch_words: int = 2,
        driver: str = "cuda",
    ) -> Self: ...

@final
class Cache:
    """Plans by content, and what they counted."""

    def __new__(cls, capacity: int) -> Self: ...
    def get(self, request: Request) -> Any | None: ...
    def insert(self, request: Request, plan: Plan, may_evict: bool) -> list[Plan]: ...
    def drop(self, plan: Any) -> bool: ...
    def clear(self) -> list[Plan]: ...
    def stats(self) -> dict[str, int]: ...

def join_groups(plans: list[Plan]) -> tuple[list[list[tuple[int, int]]], list[dict[str, Any]]]:
    """Plan and group of each group of plans, in launches of at most three that keep the groups' order; and reasons.

    There is one for each launch but the first, why it was begun: plan, group, field, value, other.
    """

@disjoint_base
class Join:
    """The core of a joined plan: the hot call."""

    def __new__(
        cls,
        plans: list[Any],
        cache: Cache,
        launches: list[tuple[list[tuple[int, int, tuple[int, int, int]]], Kernel | None]],
        hooks: list[list[Any]] = [],
    ) -> Self: ...
    def run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        """Refreshes what every plan holds from one live batch, on the stream that is current.

        As `Plan.run`, of which each plan's checks are made before anything is written. `extend_lens` is for the plans
        of draft extend among them, and must be given if there is one.
        """

    def _admit(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> bool | None: ...
    def _count(self) -> None: ...
    def _arguments(
        self,
        launch: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> tuple[int, ...]: ...
    @property
    def _runs(self) -> int: ...
    @property
    def _overlap_runs(self) -> int: ...
    @property
    def _hooked_runs(self) -> int: ...

@disjoint_base
class Plan:
    """The core of a plan: the hot call."""

    def __new__(
        cls,
        request: Request,
        cache: Cache,
        status: int,
        cuts: list[tuple[int, int, int]],
        kernels: list[Kernel] | None = None,
        hooks: list[list[Any]] = [],
        memory: list[torch.Tensor] = [],
    ) -> Self: ...
    def run(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None:
        """Refreshes every planned buffer from the live batch: one launch a group, on the stream that is current.

        Compiles, allocates and synchronises nothing, but for the fallbacks that `explain()` names: inputs that overlap
        an output are cloned, tensors that only the host can serve are copied, and Triton's launcher loads itself at its
        first use. A batch of 0 launches nothing. Rows past the batch are inert.

        Args:
            seq_lens: [batch] int32 or int64, any stride below 4 GiB: length of each request before the draft; in draft
                extend the length including the extension.
            req_pool_indices: [batch] int32 or int64, any stride below 4 GiB: request slot of each request.
            num_padding: the last so many requests are padding, clamped to 0..batch.
            extend_lens: [batch] int32 or int64, any stride below 4 GiB: accepted rows of each request; draft extend
                only.

        Raises:
            LayoutError: an input that is no tensor, of a wrong dtype or rank, of another length than `seq_lens`,
                misaligned, or with a stride of 4 GiB or more.
            PlanChangedError: an input on another device than planned; `extend_lens` given or missing against the mode.
            CapacityError: more requests than the bucket holds.
            LaunchError: the driver refused the launch.
        """

    def _admit(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> bool | None: ...
    def _count(self) -> None: ...
    def _count_step(self, step: int) -> None: ...
    def _arguments(
        self,
        group: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
        alone: int | None = None,
    ) -> tuple[int, ...]: ...
    def _run_step(
        self,
        step: int,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        num_padding: int = 0,
        extend_lens: torch.Tensor | None = None,
    ) -> None: ...
    def _bare_launch_seconds(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        times: int,
        extend_lens: torch.Tensor | None = None,
    ) -> float: ...
    @property
    def _runs(self) -> int: ...
    @property
    def _overlap_runs(self) -> int: ...
    @property
    def _hooked_runs(self) -> int: ...
    @property
    def _request(self) -> Request: ...
