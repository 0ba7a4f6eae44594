"""One version of the package in a process of its own, measured point by point as `against.py` asks.

The process reads a `Setup` and then `Ask` after `Ask` from standard input, each a line of JSON, and answers each with a
line of JSON. Of the package only `RequestTable`, `StepBuffers`, `ReplayPlanner`, `plan` and `run` are used, so that an
old version can be measured as well.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Any

import torch

from lib.gpu_timing import gpu_samples
from lib.planners import Planners
from lib.results import attempt
from lib.timing import LiveSet, TimedCall, host_times, looped
from lib.workload import Tensors, Workload

from .inputs import Form, live_inputs
from .options import Point

__all__ = ["Answer", "Ask", "Hello", "Setup"]


@dataclass(frozen=True)
class Setup:
    """What a process measures.

    Attributes:
        fields: names of the buffers that each step has.
        device: "cuda" or "cpu".
        backend: backend of the planner.
        form: what the points have in common, as the fields of `Form`.
        max_batch: requests of the largest batch.
    """

    fields: list[str]
    device: str
    backend: str
    form: dict[str, Any]
    max_batch: int


@dataclass(frozen=True)
class Hello:
    """The first answer: what is measured.

    Attributes:
        file: file of the package.
        version: version of the package.
    """

    file: str
    version: str


@dataclass(frozen=True)
class Ask:
    """One turn at a point.

    Attributes:
        point: batch, steps, context and live length.
        batches: samples of host time.
        graphs: graphs whose GPU time is sampled; 0 measures none.
    """

    point: list[int]
    batches: int
    graphs: int


@dataclass(frozen=True)
class Answer:
    """The times of one turn.

    Attributes:
        host_us: microseconds of a call, a sample a batch.
        gpu_us: microseconds of a refresh as a graph node, several samples a graph.
        backend: backend of the plan that was run.
        errors: what failed.
    """

    host_us: list[float]
    gpu_us: list[float]
    backend: str
    errors: dict[str, str]


class Version:
    """Measures points. The plans of a point are kept for its further turns."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.form = Form(**setup.form)
        self.workload = Workload(setup.fields, setup.device, max_batch=setup.max_batch)
        self.planners: Planners | None = None

    def measure(self, ask: Ask) -> Answer:
        """One turn at a point."""
        errors: dict[str, str] = {}
        point = Point(*ask.point)
        planned = attempt(errors, "plan", partial(self._plan, point))
        if planned is None:
            return Answer([], [], "", errors)
        steps, planners = planned
        inputs = live_inputs(self.workload, point, self.form).ours
        counted = attempt(errors, "plan", partial(self._planned, planners, steps, "count"))
        if counted is None:
            return Answer([], [], "", errors)
        host = TimedCall("host", looped(counted.run, inputs), errors=errors)
        host_times([host], self._sync, batches=ask.batches)
        gpu: list[float] = []
        if ask.graphs:
            gpu = attempt(errors, "gpu", partial(self._gpu, planners, steps, inputs, ask.graphs)) or []
        return Answer([sample * 1e6 for sample in host.samples], gpu, counted.backend, errors)

    def _plan(self, point: Point) -> tuple[list[Tensors], Planners]:
        if self.planners is None or self.workload.context != point.context:
            table = self.workload.set_context(point.context)
            self.planners = Planners(table, self.setup.backend)
        rows = point.batch * self.form.rows_per_request
        return [self.workload.buffers(rows, step) for step in range(point.steps)], self.planners

    def _planned(self, planners: Planners, steps: list[Tensors], padding: str) -> Any:
        # The planner keeps plans, so that only the first turn at a point makes them.
        return planners.plan(self.setup.backend, steps, padding=padding, **self.form.plan_options)

    def _gpu(self, planners: Planners, steps: list[Tensors], inputs: list[LiveSet], graphs: int) -> list[float]:
        run = self._planned(planners, steps, "slot").run
        return [sample for _ in range(graphs) for sample in gpu_samples(run, inputs)]

    def _sync(self) -> None:
        if self.workload.device.type == "cuda":
            torch.cuda.synchronize()


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answers until the requests end."""
    import qsa_group

    def answer(message: Any) -> None:
        answers.write(json.dumps(asdict(message)) + "\n")
        answers.flush()

    version = Version(Setup(**json.loads(requests.readline())))
    answer(Hello(qsa_group.__file__, qsa_group.__version__))
    for request in requests:
        answer(version.measure(Ask(**json.loads(request))))


def main() -> None:
    """Serves over standard input and output. Whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
