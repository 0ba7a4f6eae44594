"""The product under test, driven through its public surface and judged by the oracle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from arena import Arena, shaped
from helpers import oracle
from helpers.oracle import FIELDS, Round
from helpers.strategies import Inputs
from qsa_group import ReplayPlan, ReplayPlanner, RequestTable, StepBuffers, launch
from qsa_group.kernel import Tiling


@dataclass(frozen=True)
class Backend:
    """A way of running the product, and where its tensors live."""

    name: str
    device: str


HOST = Backend("host", "cpu")


def mode_arguments(round_: Round) -> dict[str, Any]:
    """The keyword arguments that `plan` takes for a round."""
    arguments: dict[str, Any] = {"mode": round_.mode, "padding": round_.padding}
    if round_.draft_token_num is not None:
        arguments["draft_token_num"] = round_.draft_token_num
    return arguments


def live_inputs(round_: Round, device: str, how: Inputs | None = None) -> dict[str, Any]:
    """The arguments that `run` takes for a round."""
    how = how or Inputs()
    arguments: dict[str, Any] = {
        "seq_lens": shaped(round_.seq_lens, how.lens_dtype, device, how.lens_form),
        "req_pool_indices": shaped(round_.slots, how.slot_dtype, device, how.slot_form),
        "num_padding": round_.num_padding,
    }
    if round_.extend_lens is not None:
        arguments["extend_lens"] = shaped(round_.extend_lens, how.extend_dtype, device, how.extend_form)
    return arguments


def planner_of(
    round_: Round,
    backend: Backend,
    table: torch.Tensor | None = None,
    *,
    way: launch.Backend | None = None,
    cache_capacity: int = 256,
) -> ReplayPlanner:
    """A planner over the round's table, or over a tensor that holds the same; `way` is used as it is."""
    if table is None:
        table = torch.from_numpy(round_.table).to(backend.device)
    request_table = RequestTable(table, compress_ratio=round_.ratio, page_size=round_.page, ring_size=round_.ring)
    return ReplayPlanner(request_table, backend=way or backend.name, cache_capacity=cache_capacity)


def stubbed(round_: Round, *, fails: bool = False) -> ReplayPlanner:
    """A planner whose launches a stub of the driver takes, on CPU tensors."""
    way = launch.DirectBackend(launch.StubDriver(fails=fails))
    return planner_of(round_, Backend("direct", "cpu"), way=way)


def step_buffers(arena: Arena, offsets: Iterable[int]) -> list[StepBuffers]:
    """The steps of an arena as the product takes them."""
    return [StepBuffers(offset=offset, **arena.step(step)) for step, offset in enumerate(offsets)]


def tiled(round_: Round, backend: Backend, tiling: Tiling) -> ReplayPlanner:
    """A planner whose every launch has this tiling. The host has no tiling, so its tests are skipped."""
    if backend.name == "host":
        pytest.skip("the host backend has no tiling")
    kind = {"direct": launch.DirectBackend, "triton": launch.TritonBackend}[backend.name]
    return planner_of(round_, backend, way=kind(tiling=lambda *_: tiling))


class Harness:
    """A plan over poisoned buffers, and the check of what a run leaves in them."""

    def __init__(
        self,
        backend: Backend,
        round_: Round,
        *,
        table: torch.Tensor | None = None,
        planner: ReplayPlanner | None = None,
        fields: Iterable[str] = FIELDS,
        page_gap: int = 0,
        ring_gap: int = 0,
        shift: int = 0,
    ) -> None:
        self.backend = backend
        self.round = round_
        self.arena = Arena(
            round_.steps,
            round_.rows,
            round_.ratio,
            round_.page_columns,
            backend.device,
            fields=fields,
            page_gap=page_gap,
            ring_gap=ring_gap,
            shift=shift,
        )
        self.planner = planner or planner_of(round_, backend, table)
        self.plan: ReplayPlan = self.planner.plan(step_buffers(self.arena, round_.offsets), **mode_arguments(round_))

    def run(self, round_: Round | None = None, how: Inputs | None = None) -> None:
        """One refresh from the given round's live inputs."""
        self.plan.run(**live_inputs(round_ or self.round, self.backend.device, how))

    def refresh(self, round_: Round | None = None, how: Inputs | None = None) -> oracle.Outcome:
        """One refresh over freshly poisoned buffers; outputs and status must be the oracle's."""
        self.arena.poison()
        self.plan.reset_status()
        self.run(round_, how)
        return self.check(round_)

    def check(self, round_: Round | None = None) -> oracle.Outcome:
        """The buffers and the status word must be what one refresh over poisoned buffers leaves."""
        outcome = self.check_arena(self.arena, round_ or self.round)
        assert int(self.plan.status()) == outcome.status, f"status {self.plan.status()!r}, wanted {outcome.status}"
        return outcome

    @staticmethod
    def check_arena(arena: Arena, round_: Round) -> oracle.Outcome:
        """The buffers must be what one refresh over poisoned buffers leaves."""
        outcome = oracle.refresh(round_)
        arena.assert_holds(outcome)
        return outcome


def refresh_once(backend: Backend, round_: Round, how: Inputs | None = None, **form: Any) -> Harness:
    """Plans, refreshes and checks one round."""
    harness = Harness(backend, round_, **form)
    harness.refresh(how=how)
    return harness
