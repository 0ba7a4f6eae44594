"""The product under test, driven through its public surface and judged by the oracle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from helpers import oracle
from helpers.arena import Arena, shaped
from helpers.oracle import FIELDS, Case
from helpers.strategies import Inputs
from qsa_group import ReplayPlan, ReplayPlanner, RequestTable, StepBuffers, launch
from qsa_group.kernel import Tiling


@dataclass(frozen=True)
class Backend:
    """A way of running the product, and where its tensors live."""

    name: str
    device: str


HOST = Backend("host", "cpu")


def mode_arguments(case: Case) -> dict[str, Any]:
    """The keyword arguments that `plan` takes for a round."""
    arguments: dict[str, Any] = {"mode": case.mode, "padding": case.padding}
    if case.draft_token_num is not None:
        arguments["draft_token_num"] = case.draft_token_num
    return arguments


def live_inputs(case: Case, device: str, how: Inputs | None = None) -> dict[str, Any]:
    """The arguments that `run` takes for a round."""
    how = how or Inputs()
    arguments: dict[str, Any] = {
        "seq_lens": shaped(case.seq_lens, how.lens_dtype, device, how.lens_form),
        "req_pool_indices": shaped(case.slots, how.slot_dtype, device, how.slot_form),
        "num_padding": case.num_padding,
    }
    if case.extend_lens is not None:
        arguments["extend_lens"] = shaped(case.extend_lens, how.extend_dtype, device, how.extend_form)
    return arguments


def planner_of(
    case: Case,
    backend: Backend,
    table: torch.Tensor | None = None,
    *,
    way: launch.Backend | None = None,
    cache_capacity: int = 256,
) -> ReplayPlanner:
    """A planner over the round's table, or over a tensor that holds the same; `way` is used as it is."""
    if table is None:
        table = torch.from_numpy(case.table).to(backend.device)
    request_table = RequestTable(table, compress_ratio=case.ratio, page_size=case.page, ring_size=case.ring)
    return ReplayPlanner(request_table, backend=way or backend.name, cache_capacity=cache_capacity)


def stubbed(case: Case, *, fails: bool = False) -> ReplayPlanner:
    """A planner whose launches a stub of the driver takes, on CPU tensors."""
    way = launch.DirectBackend(launch.StubDriver(fails=fails))
    return planner_of(case, Backend("direct", "cpu"), way=way)


def step_buffers(arena: Arena, offsets: Iterable[int]) -> list[StepBuffers]:
    """The steps of an arena as the product takes them."""
    return [StepBuffers(offset=offset, **arena.step(step)) for step, offset in enumerate(offsets)]


def tiled(case: Case, backend: Backend, tiling: Tiling) -> ReplayPlanner:
    """A planner whose every launch has this tiling. The host has no tiling, so its tests are skipped."""
    if backend.name == "host":
        pytest.skip("the host backend has no tiling")
    kind = {"direct": launch.DirectBackend, "triton": launch.TritonBackend}[backend.name]
    return planner_of(case, backend, way=kind(tiling=lambda *_: tiling))


class Harness:
    """A plan over poisoned buffers, and the check of what a run leaves in them."""

    def __init__(
        self,
        backend: Backend,
        case: Case,
        *,
        table: torch.Tensor | None = None,
        planner: ReplayPlanner | None = None,
        fields: Iterable[str] = FIELDS,
        page_gap: int = 0,
        ring_gap: int = 0,
        shift: int = 0,
    ) -> None:
        self.backend = backend
        self.case = case
        self.arena = Arena(
            case.steps,
            case.rows,
            case.ratio,
            case.page_columns,
            backend.device,
            fields=fields,
            page_gap=page_gap,
            ring_gap=ring_gap,
            shift=shift,
        )
        self.planner = planner or planner_of(case, backend, table)
        self.plan: ReplayPlan = self.planner.plan(step_buffers(self.arena, case.offsets), **mode_arguments(case))

    def run(self, case: Case | None = None, how: Inputs | None = None) -> None:
        """One refresh from the given round's live inputs."""
        self.plan.run(**live_inputs(case or self.case, self.backend.device, how))

    def refresh(self, case: Case | None = None, how: Inputs | None = None) -> oracle.Outcome:
        """One refresh over freshly poisoned buffers; outputs and status must be the oracle's."""
        self.arena.poison()
        self.plan.reset_status()
        self.run(case, how)
        return self.check(case)

    def check(self, case: Case | None = None) -> oracle.Outcome:
        """The buffers and the status word must be what one refresh over poisoned buffers leaves."""
        outcome = self.check_arena(self.arena, case or self.case)
        assert int(self.plan.status()) == outcome.status, f"status {self.plan.status()!r}, wanted {outcome.status}"
        return outcome

    @staticmethod
    def check_arena(arena: Arena, case: Case) -> oracle.Outcome:
        """The buffers must be what one refresh over poisoned buffers leaves."""
        outcome = oracle.refresh(case)
        arena.assert_holds(outcome)
        return outcome


def refresh_once(backend: Backend, case: Case, how: Inputs | None = None, **form: Any) -> Harness:
    """Plans, refreshes and checks one round."""
    harness = Harness(backend, case, **form)
    harness.refresh(how=how)
    return harness
