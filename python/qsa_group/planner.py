"""The planner: validates, groups, compiles and caches, so that `run` has nothing left to do but launch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from . import _core
from .buffers import FIELDS, RequestTable, StepBuffers
from .errors import LayoutError, UnsupportedError
from .kernel import compile_stats
from .launch import Backend, PlanInputs, is_capturing, resolve
from .plan import ReplayPlan

__all__ = ["ReplayPlanner"]

_STATUS_WORDS = 1024
"""Status words of one allocation. A plan that is made inside a capture takes its word from there."""


class ReplayPlanner:
    """Makes plans over one request table, and keeps them.

    Args:
        table: the request table that every plan reads.
        backend: "direct" starts the kernel by one driver call, "triton" by Triton's own launcher, "host" runs on the
            CPU. "auto" takes the first of these that works on the table's device. A direct plan whose kernel must not
            be started directly goes through Triton's launcher, and the plan's `explain()` says why. A `Backend` of
            `qsa_group.launch` is taken as it is.
        cache_capacity: most plans that are kept. The least recently used plan goes first; 0 keeps none.

    Raises:
        LayoutError: an unknown backend or a bad capacity.
        UnsupportedError: the backend cannot work on the table's device here.

    Attributes:
        table: the request table.
        backend: name of the backend that was taken.
    """

    def __init__(self, table: RequestTable, backend: str | Backend = "auto", *, cache_capacity: int = 256) -> None:
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
        self._backend, self._notes = resolve(backend, table.device)
        self.backend = self._backend.name
        self._cache = _core.Cache(cache_capacity)
        self._counters = _core.Counters()
        self._plans = 0
        self._lock = threading.RLock()
        self._status_words: list[torch.Tensor] = []
        # A recorded graph may outlive its plan's place in the cache, and still writes its status word.
        self._status_blocks: list[torch.Tensor] = []
        self._refill_status_words()

    def plan(
        self,
        steps: Iterable[StepBuffers],
        mode: str = "decode",
        *,
        draft_token_num: int | None = None,
        padding: str = "count",
    ) -> ReplayPlan:
        """A plan for these steps. An earlier plan of the same content is returned, if its memory has not moved.

        Args:
            steps: one `StepBuffers` a step, at least one. Steps that agree form a group, and a group has one launch.
                Groups run in the order of their first steps.
            mode: "decode": row i is request i at its length plus the step's offset. "target_verify": `draft_token_num`
                rows a request. "draft_extend": `extend_lens[q]` packed rows of request q.
            draft_token_num: rows of a request; target verify only.
            padding: "count": `run`'s `num_padding` says how many requests at the end are padding. "slot": a request
                with slot 0 is padding. No host value changes between runs then, and a run can be recorded in a graph.

        Returns:
            The plan. Planning the same steps again gives the same plan, as long as the planner keeps it.

        Raises:
            LayoutError: a buffer or argument has a wrong form; names the step and the field.
            CapacityError: a bucket of more rows than can be served.
            PlanChangedError: the request table's memory moved; make a new `RequestTable` and a new planner.
            UnsupportedError: no kernel can be had here, or the kernel is not loaded yet and a capture is on.
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
        return self._plan(_core.Blueprint(self.table, mode, draft_token_num, padding, planned), planned)

    def join(self, plans: Sequence[ReplayPlan]) -> ReplayPlan:
        """One plan with the steps of several plans. Up to three of their groups share a launch.

        For plans whose live inputs exist at the same time. The draft steps of a round and its verify rows both start
        from the lengths before the draft. Draft extend has the lengths of the next round's draft. A run does what
        running the plans in their order does; the joined plan has a status word and counts of its own. Groups that
        would write the same memory keep launches of their own, in order.

        Join before a capture: each composition of groups has a kernel of its own, and `warmup` does not compile those.
        That takes about as long as compiling for the groups one by one: seconds, and half a minute for three groups of
        16 steps.

        Args:
            plans: two plans or more over this planner's table, of any modes, buckets and padding rules.

        Returns:
            A plan like any other. Its steps are those of the plans, numbered on.

        Raises:
            LayoutError: fewer than two plans, something else than a plan, or a plan over another table.
            UnsupportedError: no kernel can be had here, or the kernel is not loaded yet and a capture is on.
        """
        if not isinstance(plans, Sequence):
            raise LayoutError(
                f"plans has type {type(plans).__name__}, must be a sequence of ReplayPlan; pass the plans in order",
                field="plans",
            )
        for index, plan in enumerate(plans):
            if not isinstance(plan, ReplayPlan):
                raise LayoutError(
                    f"plans[{index}] has type {type(plan).__name__}, must be ReplayPlan; pass what planner.plan made",
                    field="plans",
                )
            if plan.table is not self.table:
                raise LayoutError(
                    f"plans[{index}] was planned over {plan.table!r}, must be over this planner's {self.table!r}; join "
                    "plans of one planner",
                    field="plans",
                )
        blueprint = _core.Blueprint.join([plan.blueprint for plan in plans])
        return self._plan(blueprint, tuple(step for plan in plans for step in plan.steps))

    def warmup(self, num_steps: int | Iterable[int], mode: str = "decode", *, buffers: Iterable[str] = FIELDS) -> None:
        """Compiles and loads the kernels of these group sizes. A later `plan` finds them, inside a capture too.

        A kernel serves plans of the same mode and of exactly the same buffers.

        Args:
            num_steps: steps of a group, or several such numbers.
            mode: as for `plan`.
            buffers: names of the buffers that each step has; all nine by default.

        Raises:
            LayoutError: an unknown mode or buffer, or a group of less than one step.
            UnsupportedError: a kernel cannot be had here.
        """
        names = [buffers] if isinstance(buffers, str) or not isinstance(buffers, Iterable) else list(buffers)
        unknown = sorted({repr(name) for name in names if name not in FIELDS})
        if unknown or not names:
            raise LayoutError(
                f"buffers has {', '.join(unknown) or 'nothing'}, must be names out of {', '.join(FIELDS)}; pass names "
                "of StepBuffers' buffers",
                field="buffers",
            )
        if not isinstance(mode, str) or mode not in _core.MODES:
            raise LayoutError(
                f"mode has value {mode!r}, must be one of {', '.join(_core.MODES)}; pass one of these", field="mode"
            )
        sizes: list[Any] = list(num_steps) if isinstance(num_steps, Iterable) else [num_steps]
        if not sizes or any(not isinstance(size, int) or not 1 <= size <= _core.MAX_GROUP_STEPS for size in sizes):
            raise LayoutError(
                f"num_steps has value {sizes}, must be ints from 1 to {_core.MAX_GROUP_STEPS}; pass sizes of groups",
                field="num_steps",
            )
        present = tuple(name for name in FIELDS if name in names)
        for size in sizes:
            self._backend.warmup(self.table, mode, size, present)

    def drop(self, plan: ReplayPlan) -> bool:
        """Forgets a plan. Returns whether the planner kept it. Whoever holds the plan can still run it."""
        return self._cache.drop(plan)

    def clear(self) -> int:
        """Forgets every plan, and returns how many there were. For when the graphs are replaced.

        A replaced table needs a `RequestTable` and a planner of its own.
        """
        return len(self._cache.clear())

    def stats(self) -> dict[str, Any]:
        """What was planned and run so far.

        Returns:
            backend; plans (made); hits, misses, evictions, cached and capacity of the cache; dropped (plans that went
            by `drop` or `clear`, or whose memory had moved); runs, launches, step_refreshes (the launches that a launch
            a step would have taken), overlap_runs and hooked_runs of all plans; compiles and compile_seconds of the
            whole process.
        """
        compiles, seconds = compile_stats()
        counters = self._counters
        return {
            "backend": self.backend,
            "plans": self._plans,
            **self._cache.stats(),
            "runs": counters.runs,
            "launches": counters.launches,
            "step_refreshes": counters.step_refreshes,
            "overlap_runs": counters.overlap_runs,
            "hooked_runs": counters.hooked_runs,
            "compiles": compiles,
            "compile_seconds": seconds,
        }

    def __repr__(self) -> str:
        return f"ReplayPlanner({self.table!r}, backend={self.backend!r})"

    def _plan(self, blueprint: _core.Blueprint, steps: tuple[StepBuffers, ...]) -> ReplayPlan:
        with self._lock:
            cached: ReplayPlan | None = self._cache.get(blueprint)
            if cached is not None:
                return cached
            status_word = self._next_status_word()
            prepared = self._backend.prepare(PlanInputs(blueprint, self.table, steps, status_word))
            prepared = prepared.with_notes(self._notes)
            plan = ReplayPlan(blueprint, self.table, steps, status_word, prepared, self._counters)
            self._plans += 1
            # Evicted plans are released here, when the list goes, and never inside a capture.
            self._cache.insert(blueprint, plan, not is_capturing(self.table.device))
            return plan

    def _next_status_word(self) -> torch.Tensor:
        if not self._status_words:
            self._refill_status_words()
        return self._status_words.pop()

    def _refill_status_words(self) -> None:
        device = self.table.device
        if is_capturing(device):
            raise UnsupportedError(
                "status words cannot be allocated while a capture is on; make the planner, or plan, before the capture"
            )
        # Words that inference mode allocates could not be cleared outside of it.
        with torch.inference_mode(False):
            words = torch.zeros(_STATUS_WORDS, dtype=torch.int32, device=device)
        if device.type == "cuda":
            # Runs may come on any stream, and must find the words cleared.
            torch.cuda.current_stream(device).synchronize()
        self._status_blocks.append(words)
        self._status_words = [words[index : index + 1] for index in reversed(range(_STATUS_WORDS))]
