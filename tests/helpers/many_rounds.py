"""Thousands of random rounds on a device, compared there: one copy to the host for many rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from helpers.arena import POISON, Arena
from helpers.cases import random_table
from helpers.harness import Backend, step_buffers
from helpers.sglang_kernels import Metadata
from qsa_group import ReplayPlan, ReplayPlanner, RequestTable
from qsa_group.demo import reference

ROUNDS_BETWEEN_LOOKS = 64


@dataclass(frozen=True)
class Combo:
    """What stays the same over many rounds. Few of them, since SGLang's kernels compile for each."""

    mode: str
    batch: int
    ratio: int = 4
    page: int = 64
    pages: int = 16
    offsets: tuple[int, ...] = (1,)
    window: int = 1
    paddings: tuple[int, ...] = (0, 3)
    page_gap: int = 0
    shift: int = 0
    max_pages: int | None = None
    ring: int | None = None

    @property
    def rows(self) -> int:
        return self.batch * self.window

    @property
    def width(self) -> int:
        return self.pages * self.page

    @property
    def page_columns(self) -> int:
        return self.pages if self.max_pages is None else self.max_pages


COMBOS: dict[str, tuple[Combo, ...]] = {
    "decode": (
        Combo("decode", 1, offsets=(1, 2), paddings=(0,)),
        Combo("decode", 8, offsets=(1, 2), shift=1),
        Combo("decode", 64, offsets=(1, 2), pages=300, page_gap=5),
        Combo("decode", 17, ratio=8, page=128, offsets=(1, 2, 3, 4), shift=3),
        Combo("decode", 5, ratio=2, page=16, offsets=(1, 2, 3, 4, 5, 6, 7), pages=40),
        Combo("decode", 33, ratio=3, page=48, offsets=(1, 2, 3), page_gap=1),
        Combo("decode", 16, ratio=1, page=32, offsets=(1,), paddings=(0, 16)),
        Combo("decode", 9, offsets=(1, 2), ring=12),
        Combo("decode", 100, offsets=(1, 2, 3), max_pages=7),
    ),
    "target_verify": (
        Combo("target_verify", 1, window=4, paddings=(0,)),
        Combo("target_verify", 8, window=3, shift=1),
        Combo("target_verify", 64, window=4, pages=300, page_gap=5),
        Combo("target_verify", 7, ratio=8, page=128, window=8),
        Combo("target_verify", 33, ratio=3, page=48, window=2, page_gap=1),
        Combo("target_verify", 12, ratio=2, page=16, window=1, max_pages=3),
        Combo("target_verify", 6, window=4, ring=8),
    ),
    "draft_extend": (
        Combo("draft_extend", 1, window=4, paddings=(0,)),
        Combo("draft_extend", 8, window=3, shift=1),
        Combo("draft_extend", 64, window=4, pages=300, page_gap=5),
        Combo("draft_extend", 7, ratio=8, page=128, window=8),
        Combo("draft_extend", 200, ratio=3, page=48, window=2, page_gap=1),
        Combo("draft_extend", 12, ratio=2, page=16, window=1, max_pages=3),
        Combo("draft_extend", 6, window=4, ring=8),
    ),
}


class Rounds:
    """The live inputs of so many rounds of a combo, all drawn at once."""

    def __init__(self, combo: Combo, count: int, device: str, seed: int, padding: str = "count") -> None:
        rng = np.random.default_rng(seed)
        self.combo, self.count, self.device, self.padding = combo, count, device, padding
        slots = combo.batch + 9
        self.table = torch.from_numpy(random_table(rng, slots, combo.width, combo.page)).to(device)
        size = (count, combo.batch)
        reach = max(combo.offsets) if combo.mode == "decode" else combo.window
        lowest = 1 if combo.mode == "draft_extend" else 0
        lens = rng.integers(lowest, combo.width - reach + 1, size)
        edges = rng.integers(0, combo.pages, size) * combo.page + rng.integers(-reach - 1, 2, size)
        lens = np.where(rng.random(size) < 0.5, lens, edges.clip(lowest, combo.width - reach))
        slot = rng.integers(1, slots, size)
        if padding == "slot":
            slot[rng.random(size) < 0.25] = 0
        self.lens = torch.from_numpy(lens).to(device)
        self.slots = torch.from_numpy(slot).to(device)
        self.extend = torch.from_numpy(rng.integers(0, combo.window + 1, size)).to(device)
        self.num_padding = [0] * count if padding == "slot" else [int(p) for p in rng.choice(combo.paddings, count)]
        self._forms = {
            name: self._in_every_form(values)
            for name, values in (
                ("seq_lens", self.lens),
                ("req_pool_indices", self.slots),
                ("extend_lens", self.extend),
            )
        }
        self._pick = rng.integers(0, 4, (count, 3))

    @staticmethod
    def _in_every_form(values: torch.Tensor) -> list[torch.Tensor]:
        spread = torch.full((values.shape[0], 2 * values.shape[1] + 1), -99, dtype=torch.int64, device=values.device)
        spread[:, 1::2] = values
        narrow = spread.to(torch.int32)
        return [values, values.to(torch.int32), spread[:, 1::2], narrow[:, 1::2]]

    def arguments(self, number: int) -> dict[str, Any]:
        """What `run` is given: any mix of dtypes, strides and alignments."""
        names = ["seq_lens", "req_pool_indices"] + (["extend_lens"] if self.combo.mode == "draft_extend" else [])
        given: dict[str, Any] = {name: self._forms[name][self._pick[number, i]][number] for i, name in enumerate(names)}
        given["num_padding"] = self.num_padding[number]
        return given

    def layout(self) -> reference.Layout:
        """The combo as the reference takes it."""
        combo = self.combo
        return reference.Layout(
            self.table,
            combo.ratio,
            combo.page,
            combo.rows,
            combo.mode,
            combo.offsets,
            combo.window,
            self.padding,
            combo.ring,
        )

    def live(self, number: int) -> reference.LiveInputs:
        """A round as the reference takes it."""
        padding = self.num_padding[number]
        return reference.LiveInputs(self.lens[number], self.slots[number], padding, self.extend[number])

    def arena(self, **form: Any) -> Arena:
        """Buffers of this combo."""
        combo = self.combo
        return Arena(len(combo.offsets), combo.rows, combo.ratio, combo.page_columns, self.device, **form)

    def plan(self, backend: Backend, arena: Arena) -> ReplayPlan:
        """A plan over these buffers."""
        combo = self.combo
        table = RequestTable(self.table, compress_ratio=combo.ratio, page_size=combo.page, ring_size=combo.ring)
        window = {"draft_token_num": combo.window} if combo.mode == "target_verify" else {}
        planner = ReplayPlanner(table, backend=backend.name)
        return planner.plan(step_buffers(arena, combo.offsets), combo.mode, padding=self.padding, **window)


def compare_all(rounds: Rounds, one: Callable[[int], tuple[Arena, Arena]], plan: ReplayPlan) -> None:
    """Runs every round, looks at the comparisons now and then, and names the first difference."""
    for start in range(0, rounds.count, ROUNDS_BETWEEN_LOOKS):
        numbers = range(start, min(start + ROUNDS_BETWEEN_LOOKS, rounds.count))
        wrong = [(got.memory != wanted.memory).any() for got, wanted in map(one, numbers)]
        for number in torch.stack(wrong).nonzero().flatten().tolist():
            got, wanted = one(start + number)
            difference = got.difference(wanted) or "this time the values are right"
            raise AssertionError(f"{rounds.combo}, round {start + number}: {difference}")
    assert int(plan.status()) == 0


def against_reference(backend: Backend, combo: Combo, count: int, seed: int, padding: str = "count") -> None:
    """Every byte of every arena against the reference."""
    rounds = Rounds(combo, count, backend.device, seed, padding)
    arena = rounds.arena(page_gap=combo.page_gap, shift=combo.shift)
    plan, wanted, layout = rounds.plan(backend, arena), arena.fresh(), rounds.layout()

    def one(number: int) -> tuple[Arena, Arena]:
        arena.poison()
        plan.run(**rounds.arguments(number))
        wanted.poison()
        reference.refresh(layout, rounds.live(number), wanted)
        return arena, wanted

    compare_all(rounds, one, plan)


def against_sglang(module: ModuleType, backend: Backend, combo: Combo, count: int, seed: int, fused: bool) -> None:
    """Every byte against SGLang's kernels, but for page table entries past the live ones."""
    rounds = Rounds(combo, count, backend.device, seed)
    arena, theirs = rounds.arena(), rounds.arena()
    plan = rounds.plan(backend, arena)
    metadata = Metadata(theirs, rounds.table, combo.ratio, combo.page)
    # Its kernels compile again for each alignment and dtype: they get their inputs in one place.
    lens, slots, extend = (torch.empty_like(t[0]) for t in (rounds.lens, rounds.slots, rounds.extend))
    column = torch.arange(combo.page_columns, device=backend.device)
    pages = min(combo.page_columns, combo.pages)

    def one(number: int) -> tuple[Arena, Arena]:
        arena.poison()
        plan.run(**rounds.arguments(number))
        theirs.poison()
        lens.copy_(rounds.lens[number])
        slots.copy_(rounds.slots[number])
        padding = rounds.num_padding[number]
        if fused:
            metadata.fused_draft(module, lens, slots, padding)
        else:
            extend.copy_(rounds.extend[number])
            metadata.step_by_step(
                module,
                combo.mode,
                lens,
                slots,
                padding,
                extend_lens=extend.to(torch.int32) if combo.mode == "draft_extend" else None,
                window=combo.window,
                offsets=combo.offsets,
            )
        table = theirs.region("page_table")
        used = (theirs.region("sequence_lengths") + combo.page - 1) // combo.page
        table.copy_(torch.where((column < pages) & (column < used[..., None]), table, POISON))
        return arena, theirs

    compare_all(rounds, one, plan)
