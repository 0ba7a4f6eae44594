"""The planner: validates, groups, compiles and caches, so that a plan's `run` has nothing left to do but launch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from . import _core, launchers
from .compile import compile_stats
from .errors import LayoutError, UnsupportedError
from .joined import JoinedPlan, join
from .layouts import RequestTable, StepBuffers
from .plans import Blueprint, Explanation, ReplayPlan, ReplayStatus, StagedPlan, TritonPlan
from .shapes import Shape, choose_shape, shapes_of_binaries
from .variants import FIELDS, MODES, KernelVariant

__all__ = ["Explanation", "JoinedPlan", "ReplayPlan", "ReplayPlanner", "ReplayStatus", "RequestTable", "StepBuffers"]

_BACKENDS = ("auto", "direct", "triton", "host")
_STATUS_WORDS = 1024
"""Status words that are allocated at a time, so that a plan made inside a capture need not allocate."""
_MOST_LANES = 1 << 20
"""Elements of a Triton tensor, at most."""


class ReplayPlanner:
    """Makes plans over one request table, and keeps them.

    Args:
        table: the request table that every plan reads.
        backend: "direct" starts the kernel by one driver call, "triton" by Triton's own launcher, "host" runs on the
            CPU. "auto" takes the first of these that is sound here. A direct plan that must not be started directly
            goes through Triton's launcher, and its `explain()` says why.
        cache_capacity: most plans that are kept, least recently used out first; 0 keeps none.

    Raises:
        LayoutError: an unknown backend or a bad capacity.
        UnsupportedError: the backend cannot work on the table's device here.

    Attributes:
        backend: the backend as resolved.
    """

    def __init__(
        self,
        table: RequestTable,
        backend: str = "auto",
        *,
        cache_capacity: int = 256,
        _driver: str = "cuda",
        _shape: Shape | None = None,
    ) -> None:
        if not isinstance(table, RequestTable):
            raise LayoutError(
                f"table has type {type(table).__name__}, must be RequestTable; wrap req_to_token in one", field="table"
            )
        if not isinstance(cache_capacity, int) or not 0 <= cache_capacity < 1 << 32:
            raise LayoutError(
                f"cache_capacity has value {cache_capacity!r}, must be an int from 0 to {(1 << 32) - 1}; pass 0 to "
                "keep no plan",
                field="cache_capacity",
            )
        self.table = table
        self._driver = _driver
        self._shape = _shape
        self.backend, self._reasons = _resolve(backend, table.device, _driver)
        self._cache = _core.Cache(cache_capacity)
        # What says of a plan that it is this planner's, without a reference that would keep the planner.
        self._owner = object()
        self._plans = 0
        self._lock = threading.RLock()
        self._status: list[torch.Tensor] = []
        # A recorded graph may outlive its plan's place in the cache, and still writes its status word.
        self._status_blocks: list[torch.Tensor] = []
        self._refill_status()

    def plan(
        self,
        steps: Sequence[StepBuffers],
        mode: str = "decode",
        *,
        draft_token_num: int | None = None,
        padding: str = "count",
    ) -> ReplayPlan:
        """A plan for these steps; the one made before, if everything it holds is the same and still where it was.

        Args:
            steps: one `StepBuffers` a step, at least one. Steps that can share a launch do; the others run one by one
                in their order.
            mode: "decode": row i is request i at its length plus the step's offset. "target_verify": `draft_token_num`
                rows a request. "draft_extend": `extend_lens[q]` packed rows of request q.
            draft_token_num: rows of a request; target verify only.
            padding: "count": `run`'s `num_padding` says how many requests at the end are padding. "slot": a request
                with slot 0 is padding, so that no host value changes between runs and a run can be recorded in a graph.

        Raises:
            LayoutError: a buffer or argument has a wrong form; names the step and the field.
            CapacityError: a bucket of more rows than can be served.
            PlanChangedError: the request table's memory moved; make a `RequestTable` and a planner anew.
            UnsupportedError: no kernel can be had here, or it is not loaded yet and a capture is on.
        """
        if not isinstance(steps, Iterable):
            raise LayoutError(
                f"steps has type {type(steps).__name__}, must be a sequence of StepBuffers; pass one a step",
                field="steps",
            )
        planned = tuple(steps)
        for index, step in enumerate(planned):
            if not isinstance(step, StepBuffers):
                raise LayoutError(
                    f"step {index} has type {type(step).__name__}, must be StepBuffers; wrap its buffers in one",
                    step=index,
                    field="steps",
                )
        request = _core.Request(self.table._core, mode, draft_token_num, padding, planned)
        with self._lock:
            held: ReplayPlan | None = self._cache.get(request)
            if held is not None:
                return held
            plan = self._make(request, planned, mode, draft_token_num, padding)
            self._plans += 1
            # What was evicted is released here, when the list goes, and never inside a capture.
            self._cache.insert(request, plan, not launchers.capturing(self.table.device))
            return plan

    def join(self, plans: Sequence[ReplayPlan]) -> JoinedPlan:
        """One plan that refreshes what several do, three of their groups a launch.

        For plans whose live inputs exist at the same time: the draft steps of a round and its verify rows both start
        from the lengths before the draft, and draft extend, whose lengths stand when verify is done, has the lengths of
        the next round's draft. Groups that would write the same memory keep launches of their own, in order.

        Call it before a capture: a kernel is compiled for each composition of groups, which `warmup` does not cover.
        That takes about as long as for the groups by themselves together, seconds; half a minute if three have 16
        steps each. The joined plan is not cached.

        Args:
            plans: two plans of this planner or more, of any modes, buckets and padding rules.

        Raises:
            LayoutError: fewer than two, or what is no plan of this planner.
            UnsupportedError: no kernel can be had here, or it is not loaded yet and a capture is on.
        """
        return join(self, plans)

    def warmup(
        self,
        num_steps: int | Iterable[int],
        mode: str = "decode",
        *,
        buffers: Iterable[str] = FIELDS,
    ) -> None:
        """Compiles and loads the kernels of these group sizes, so that a later `plan` finds them, inside a capture too.

        Args:
            num_steps: steps of a group, or several such numbers.
            mode: as for `plan`.
            buffers: names of the buffers that each step has.

        Raises:
            LayoutError: an unknown mode or buffer, or a group of less than one step.
            UnsupportedError: a kernel cannot be had here.
        """
        names = [buffers] if isinstance(buffers, str) or not isinstance(buffers, Iterable) else list(buffers)
        named = {name for name in names if isinstance(name, str)}
        unknown = sorted({repr(name) for name in names if name not in FIELDS})
        if unknown or not named:
            raise LayoutError(
                f"buffers has {', '.join(unknown) or 'nothing'}, must be names out of {', '.join(FIELDS)}; pass names "
                "of StepBuffers' buffers",
                field="buffers",
            )
        if not isinstance(mode, str) or mode not in MODES:
            raise LayoutError(
                f"mode has value {mode!r}, must be one of {', '.join(MODES)}; pass one of these", field="mode"
            )
        sizes: list[Any] = list(num_steps) if isinstance(num_steps, Iterable) else [num_steps]
        if not sizes or any(not isinstance(size, int) or not 1 <= size <= _core.MAX_GROUP_STEPS for size in sizes):
            raise LayoutError(
                f"num_steps has value {sizes}, must be ints from 1 to {_core.MAX_GROUP_STEPS}; pass sizes of groups",
                field="num_steps",
            )
        if self.backend == "host" or launchers.interpreting():
            return
        present = tuple(name for name in FIELDS if name in named)
        for size in sizes:
            for shape in shapes_of_binaries(mode, size) if self._shape is None else (self._shape,):
                self._load(self._variant(mode, size, present, shape))

    def drop(self, plan: ReplayPlan) -> bool:
        """Forgets a plan; whether it was kept. Whoever holds it can still run it."""
        return self._cache.drop(plan)

    def clear(self) -> int:
        """Forgets every plan, and returns how many there were. For when the graphs are replaced.

        A replaced table needs a `RequestTable` and a planner of its own.
        """
        return len(self._cache.clear())

    def stats(self) -> dict[str, Any]:
        """What was planned and run so far.

        Returns:
            backend, plans (made), hits, misses, evictions, dropped (by `drop` and `clear`, or since their memory had
            moved), cached, capacity, runs (of plans and of joined plans; a joined run whose plans run one after the
            other counts as theirs), launches, step_refreshes (the launches that a launch a step would have taken),
            overlap_runs and hooked_runs (of plans), and for the whole process compiles and compile_seconds.
        """
        compiles, seconds = compile_stats()
        return {
            "backend": self.backend,
            "plans": self._plans,
            **self._cache.stats(),
            "compiles": compiles,
            "compile_seconds": seconds,
        }

    def __repr__(self) -> str:
        return f"ReplayPlanner({self.table!r}, backend={self.backend!r})"

    def _make(
        self,
        request: _core.Request,
        steps: tuple[StepBuffers, ...],
        mode: str,
        draft_token_num: int | None,
        padding: str,
    ) -> ReplayPlan:
        shapes = [
            self._shape or choose_shape(mode, len(group), rows, pages)
            for group, rows, pages in zip(request.groups, request.group_rows, request.group_pages, strict=True)
        ]
        variants = [
            self._variant(mode, len(group), tuple(buffers), shape)
            for group, buffers, shape in zip(request.groups, request.group_buffers, shapes, strict=True)
        ]
        blueprint = Blueprint(
            request=request,
            table=self.table,
            steps=steps,
            mode=mode,
            draft_token_num=draft_token_num,
            padding=padding,
            backend=self.backend,
            status_word=self._next_status(),
            variants=variants,
            cuts=[
                variant.cut(rows, shape.lanes)
                for variant, rows, shape in zip(variants, request.group_rows, shapes, strict=True)
            ],
            fallbacks=list(self._reasons),
            owner=self._owner,
        )
        if self.backend == "host":
            if self.table.device.type == "cpu":
                return ReplayPlan(blueprint, self._cache)
            blueprint.kernels = []
            blueprint.fallbacks.append(f"tensors on {self.table.device} are staged through the host")
            return StagedPlan(blueprint, self._cache)
        if any(variant.ring > _MOST_LANES for variant in variants):
            raise LayoutError(
                f"compress_ratio has value {self.table.compress_ratio}, must be at most {_MOST_LANES} where the kernel "
                "refreshes ring_group_locs; leave that buffer out, or use backend 'host'",
                field="compress_ratio",
            )
        blueprint.kernels = []
        if launchers.interpreting() and self._driver == "cuda":
            return TritonPlan(blueprint, self._cache)
        refused = self._watch_hooks(blueprint) if self.backend == "direct" else None
        direct = self.backend == "direct" and refused is None
        device = self.table.device
        blueprint.compiled, kernels = launchers.load_kernels(variants, device, self._driver, direct=direct)
        if direct and not isinstance(kernels, str):
            blueprint.kernels = kernels
            return ReplayPlan(blueprint, self._cache)
        if self.backend == "direct":
            blueprint.backend = "triton"
            blueprint.fallbacks.append(f"not started directly but by Triton's launcher: {refused or kernels}")
        return TritonPlan(blueprint, self._cache)

    def _watch_hooks(self, blueprint: Blueprint) -> str | None:
        """Notes where Triton's launch hooks stand; why that cannot be watched, if so."""
        try:
            blueprint.hooks = [] if self._driver != "cuda" else launchers.hook_lists()
        except UnsupportedError as error:
            return str(error)
        return None

    def _load(self, variant: KernelVariant) -> tuple[Any, _core.Kernel | str]:
        by_triton = self.backend == "triton"
        return launchers.load_kernel(variant, self.table.device, self._driver, by_triton=by_triton)

    def _variant(self, mode: str, num_steps: int, buffers: tuple[str, ...], shape: Shape) -> KernelVariant:
        return KernelVariant(
            mode=mode,
            num_steps=num_steps,
            buffers=buffers,
            compress_ratio=self.table.compress_ratio,
            page_size=self.table.page_size,
            block=shape.block,
            wide=shape.wide,
            num_warps=shape.num_warps,
        )

    def _next_status(self) -> torch.Tensor:
        if not self._status:
            self._refill_status()
        return self._status.pop()

    def _refill_status(self) -> None:
        device = self.table.device
        if launchers.capturing(device):
            raise UnsupportedError(
                "status words cannot be allocated while a capture is on; make the planner, or plan, before the capture"
            )
        words = torch.zeros(_STATUS_WORDS, dtype=torch.int32, device=device)
        if device.type == "cuda":
            # Runs may come on any stream, and must find the words cleared.
            torch.cuda.current_stream(device).synchronize()
        self._status_blocks.append(words)
        self._status = [words[index : index + 1] for index in reversed(range(_STATUS_WORDS))]


def _resolve(backend: str, device: torch.device, driver: str) -> tuple[str, list[str]]:
    """The backend that will be used, and why not a better one."""
    if backend not in _BACKENDS:
        raise LayoutError(
            f"backend has value {backend!r}, must be one of {', '.join(_BACKENDS)}; pass one of these", field="backend"
        )
    if device.type == "meta":
        raise UnsupportedError("the request table is on the meta device, which holds no data; pass real tensors")
    if backend == "host" or (backend == "auto" and device.type == "cpu"):
        return "host", []  # before anything imports Triton, which takes a while and turns on the GIL
    direct = launchers.direct_refusal(device, driver)
    by_triton = launchers.triton_refusal(device)
    if backend == "direct":
        if direct is not None:
            raise UnsupportedError(f"backend 'direct' cannot be used: {direct}; use backend 'auto'")
        return backend, []
    if backend == "triton":
        if by_triton is not None:
            raise UnsupportedError(f"backend 'triton' cannot be used: {by_triton}; use backend 'auto'")
        return backend, []
    if direct is None:
        return "direct", []
    if by_triton is None:
        return "triton", [f"no direct launches: {direct}"]
    return "host", [f"no kernel: {by_triton}"]
