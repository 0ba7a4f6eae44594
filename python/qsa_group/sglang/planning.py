"""From what SGLang has captured to plans: which steps are refreshed here, by which planner, from which inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qsa_group import LayoutError, ReplayPlan, ReplayPlanner, RequestTable

from .bridge import (
    BUFFERS,
    Capture,
    buffers_read,
    has_gpu_kernels,
    is_translating,
    pool_of,
    request_table,
    step_buffers,
)
from .faults import is_refusal, reading
from .inputs import Inputs, fixed_inputs
from .log import say_once
from .phase import DRAFT, PLAN_MODES
from .settings import Settings

__all__ = ["PlannedBucket", "Planners", "StepsPlan", "plan_bucket"]


class StepsPlan(NamedTuple):
    """A plan, and the indices of the steps that it refreshes."""

    plan: ReplayPlan
    steps: tuple[int, ...]


@dataclass(frozen=True)
class PlannedBucket:
    """What was planned for one bucket at its capture.

    Attributes:
        phase: "draft", "verify" or "extend".
        batch_size: requests of the bucket.
        forward_mode: the mode that SGLang keeps the metadata under.
        metadata: SGLang's metadata of each step.
        names: the buffers that are refreshed.
        plans: one plan for each request table, at least one.
        inputs: the tensors that a recorded refresh reads, or None where none may be recorded.
        draft_token_num: rows a request, None but in verify.
    """

    phase: str
    batch_size: int
    forward_mode: Any
    metadata: tuple[Any, ...]
    names: tuple[str, ...]
    plans: tuple[StepsPlan, ...]
    inputs: Inputs | None
    draft_token_num: int | None

    @property
    def leftover(self) -> tuple[int, ...]:
        """Steps without a plan, which SGLang refreshes itself."""
        planned = {step for _, steps in self.plans for step in steps}
        return tuple(step for step in range(len(self.metadata)) if step not in planned)


class Planners:
    """The planners of one backend: one for each request table that its steps read, as a rule one for all steps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._planners: dict[tuple[int, ...], ReplayPlanner] = {}

    def planner(self, table: RequestTable) -> ReplayPlanner:
        """The planner over a request table."""
        tokens = table.req_to_token
        # A planner keeps its table alive, so no other table ever has an address of this mapping.
        key = (tokens.data_ptr(), *tokens.shape, *tokens.stride(), table.compress_ratio, table.page_size)
        planner = self._planners.get(key)
        if planner is None:
            backend = self._settings.planner_backend if tokens.is_cuda else self._settings.backend
            planner = self._planners[key] = ReplayPlanner(table, backend=backend)
        return planner

    def forget(self) -> None:
        """Drops every planner. The plans of living buckets stay."""
        self._planners.clear()

    def stats(self) -> list[dict[str, Any]]:
        """The counts of each planner."""
        return [planner.stats() for planner in self._planners.values()]


def plan_bucket(capture: Capture, planners: Planners, settings: Settings) -> PlannedBucket | None:
    """Plans the refresh of a bucket; None if SGLang has to refresh every step of it.

    Raises:
        UnexpectedSGLangError: an object of SGLang is not as expected.
        LayoutError: a buffer of the only step, or the request table, has a wrong form.
        CapacityError: the bucket has too many rows.
        PlanChangedError: the memory of the request table moved.
        UnsupportedError: no kernel can be had.
    """
    steps = [step for step in range(len(capture.metadata)) if _may_refresh(capture, step, settings)]
    if not steps:
        return None
    names: Sequence[str] = BUFFERS
    if capture.phase == DRAFT and settings.buffers == "read":
        names = buffers_read(capture)
    inputs = _recorded_inputs(capture) if settings.mode == "recorded" else None
    padding = "count" if inputs is None else "slot"

    def plan(planner: ReplayPlanner, of_table: Sequence[int]) -> ReplayPlan:
        buffers = [step_buffers(capture.metadata[step], step + 1, names) for step in of_table]
        return planner.plan(
            buffers, PLAN_MODES[capture.phase], draft_token_num=capture.draft_token_num, padding=padding
        )

    plans: list[StepsPlan] = []
    for planner, of_table in _by_planner(capture, steps, planners):
        plans += _plan_most(planner, of_table, plan)
    if not plans:
        return None
    return PlannedBucket(
        phase=capture.phase,
        batch_size=capture.batch_size,
        forward_mode=capture.forward_mode,
        metadata=capture.metadata,
        names=tuple(names),
        plans=tuple(plans),
        inputs=inputs,
        draft_token_num=capture.draft_token_num,
    )


def _may_refresh(capture: Capture, step: int, settings: Settings) -> bool:
    """Whether this package may refresh a step. The reason why not is logged once."""
    obstacle = _obstacle(capture, step, settings)
    if obstacle is None:
        return True
    reason, level = obstacle
    say_once(f"left to SGLang: {reason}", level)
    return False


def _obstacle(capture: Capture, step: int, settings: Settings) -> tuple[str, int] | None:
    """Why SGLang has to refresh a step, and the level of the log line; None where it has not."""
    backend, metadata, seq_lens = capture.backends[step], capture.metadata[step], capture.seq_lens
    if is_translating(capture, step):
        return "the request table holds virtual ids (kv_index_translator.is_translating)", logging.WARNING
    with reading("the request table and the lengths of the capture"):
        has_table, on_gpu, device = backend.req_to_token is not None, seq_lens.is_cuda, seq_lens.device
    if not has_table:
        return "there is no request table", logging.WARNING
    if not on_gpu:
        if settings.backend == "host" and device.type == "cpu":
            return None
        return f"tensors on {device} are staged through the host", logging.INFO
    if not has_gpu_kernels(backend, metadata, seq_lens):
        return f"a pool of type {type(pool_of(metadata)).__name__} is staged through the host", logging.WARNING
    return None


def _recorded_inputs(capture: Capture) -> Inputs | None:
    """The inputs that a recorded refresh may read. Without them there is a launch before each replay."""
    inputs = fixed_inputs(capture)
    if inputs is None:
        say_once(
            f"the {capture.phase} graphs cannot refresh themselves, since their inputs are not in SGLang's pool of "
            "input buffers; there is a launch before each replay instead",
            logging.INFO,
        )
    return inputs


def _by_planner(capture: Capture, steps: Iterable[int], planners: Planners) -> list[tuple[ReplayPlanner, list[int]]]:
    """The steps of each planner, planners in the order of their first step."""
    by_planner: dict[int, tuple[ReplayPlanner, list[int]]] = {}
    for step in steps:
        planner = planners.planner(request_table(capture.backends[step], capture.metadata[step]))
        by_planner.setdefault(id(planner), (planner, []))[1].append(step)
    return list(by_planner.values())


def _plan_most(
    planner: ReplayPlanner, steps: Sequence[int], plan: Callable[[ReplayPlanner, Sequence[int]], ReplayPlan]
) -> list[StepsPlan]:
    """One plan of the steps, without those whose buffers have a wrong form; empty if no step is left.

    Raises:
        LayoutError: the only step has a buffer of a wrong form, or something else than a buffer has.
    """
    remaining = list(steps)
    while remaining:
        try:
            return [StepsPlan(plan(planner, remaining), tuple(remaining))]
        except LayoutError as error:
            if error.step is None or len(steps) == 1 or not is_refusal(error):
                raise
            step = remaining.pop(error.step)
            say_once(f"left to SGLang: draft step {step}: {error}", key=f"step {step}")
    return []
