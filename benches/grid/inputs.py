"""Live inputs of a grid point, in the order of SGLang's calls and of ours."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch

from lib.timing import LiveSet
from lib.workload import Workload

from .options import Point

__all__ = ["Form", "LiveInputs", "live_inputs"]


@dataclass(frozen=True)
class Form:
    """What the points of a run have in common.

    Attributes:
        mode: "decode", "target_verify" or "draft_extend".
        draft_token_num: rows of a request in verify and extend.
        padding: requests at the end of a batch that are padding, at most all but one.
        dtype: "int64" or "int32", of lengths and slots.
    """

    mode: str
    draft_token_num: int
    padding: int
    dtype: str

    @staticmethod
    def from_options(options: argparse.Namespace) -> Form:
        """The form that a command line asks for."""
        return Form(options.mode, options.draft_token_num, options.padding, options.dtype)

    @property
    def rows_per_request(self) -> int:
        """Rows of a request in the bucket."""
        return 1 if self.mode == "decode" else self.draft_token_num

    @property
    def plan_options(self) -> dict[str, Any]:
        """Options of `ReplayPlanner.plan`."""
        options: dict[str, Any] = {"mode": self.mode}
        if self.mode == "target_verify":
            options["draft_token_num"] = self.draft_token_num
        return options


@dataclass(frozen=True)
class LiveInputs:
    """Input sets, each the positional arguments of one call.

    Attributes:
        sglang: (seq_lens, req_pool_indices, num_padding), in draft extend with the extend lengths before the padding.
        ours: as `ReplayPlan.run` takes them. Without padding the third argument is left out.
    """

    sglang: list[LiveSet]
    ours: list[LiveSet]


def live_inputs(workload: Workload, point: Point, form: Form) -> LiveInputs:
    """The inputs of a point."""
    live = workload.live(point.batch, point.live, room=16, dtype=getattr(torch, form.dtype))
    padding = min(form.padding, point.batch - 1)
    if form.mode != "draft_extend":
        ours = [(lens, slots, padding) if padding else (lens, slots) for lens, slots in live]
        return LiveInputs([(lens, slots, padding) for lens, slots in live], ours)
    generator = torch.Generator().manual_seed(5)
    most = form.rows_per_request + 1
    extends = [
        torch.randint(0, most, (point.batch,), generator=generator, dtype=torch.int32).to(workload.device) for _ in live
    ]
    sets = [(lens, slots, extend) for (lens, slots), extend in zip(live, extends, strict=True)]
    return LiveInputs(
        [(lens, slots, extend, padding) for lens, slots, extend in sets],
        [(lens, slots, padding, extend) for lens, slots, extend in sets],
    )
