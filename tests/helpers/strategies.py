"""Random cases for hypothesis: shapes are drawn, contents come from a seeded generator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from helpers.cases import random_table
from helpers.oracle import MODES, Case

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
HOSTILE_LENGTHS = (-(2**63), -(2**31), -5, -1, 0, INT32_MAX - 1, INT32_MAX, 2**31, 2**32 + 3, INT64_MAX - 1, INT64_MAX)
HOSTILE_SLOTS = (-(2**63), -(2**31), -1, INT32_MAX, 2**31, 2**32 + 1, 2**62, INT64_MAX)
HOSTILE_EXTENDS = (-(2**63), -(2**31), -1, 9, 1000, INT32_MAX, 2**31, 2**32 + 2, INT64_MAX)


@dataclass(frozen=True)
class Inputs:
    """How the live inputs lie in memory."""

    lens_dtype: torch.dtype = torch.int64
    slot_dtype: torch.dtype = torch.int32
    extend_dtype: torch.dtype = torch.int32
    lens_form: str = "contiguous"
    slot_form: str = "contiguous"
    extend_form: str = "contiguous"


def clip(values: list[int], dtype: torch.dtype) -> list[int]:
    """Values that the dtype can hold."""
    info = torch.iinfo(dtype)
    return [min(max(value, info.min), info.max) for value in values]


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    """Any mix of dtypes, strides and alignments."""
    dtypes = st.sampled_from((torch.int32, torch.int64))
    forms = st.sampled_from(("contiguous", "shifted", "strided"))
    return Inputs(draw(dtypes), draw(dtypes), draw(dtypes), draw(forms), draw(forms), draw(forms))


@st.composite
def cases(draw: st.DrawFn, *, hostile: bool = False, mode: str | None = None, how: Inputs | None = None) -> Case:
    """A round; with `hostile`, any number that the input dtypes can hold may stand anywhere."""
    mode = mode or draw(st.sampled_from(MODES))
    ratio = draw(st.sampled_from((1, 2, 3, 4, 5, 8)))
    page = ratio * draw(st.sampled_from((1, 2, 4, 16)))
    width = draw(st.one_of(st.integers(1, 6).map(lambda pages: pages * page), st.integers(1, 6 * page)))
    slots = draw(st.integers(2, 12))
    rows = draw(st.integers(1, 20))
    window = draw(st.integers(1, min(rows, 5))) if mode == "target_verify" else None
    batch = draw(st.integers(0, rows // (window or 1)))
    offsets = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)) if mode == "decode" else [1]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    case = Case(
        table=random_table(rng, slots, width, page),
        seq_lens=[int(n) for n in rng.integers(0, width + 1, batch)],
        slots=[int(r) for r in rng.integers(0, slots, batch)],
        rows=rows,
        ratio=ratio,
        page=page,
        mode=mode,
        offsets=offsets,
        draft_token_num=window,
        extend_lens=[int(e) for e in rng.integers(0, 5, batch)] if mode == "draft_extend" else None,
        num_padding=draw(st.integers(-1, batch + 1)),
        padding=draw(st.sampled_from(("count", "slot"))),
        max_pages=draw(st.one_of(st.none(), st.integers(0, width // page + 2))),
        ring=draw(st.sampled_from((None, ratio, 2 * ratio, 3 * ratio))),
    )
    return _spoilt(case, rng, how or Inputs()) if hostile else case


def _spoilt(case: Case, rng: np.random.Generator, how: Inputs) -> Case:
    """The round with hostile numbers in about a third of the places."""

    def spoil(values: list[int], hostile: tuple[int, ...], dtype: torch.dtype) -> list[int]:
        pick = rng.random(len(values)) < 1 / 3
        return clip([hostile[rng.integers(len(hostile))] if p else v for v, p in zip(values, pick, strict=True)], dtype)

    table = case.table.copy()
    table[rng.random(table.shape) < 1 / 10] = rng.choice([-1, -(2**31), INT32_MAX])
    extend = case.extend_lens
    lengths = (*HOSTILE_LENGTHS, *(case.width + more for more in (1, 2, 3, 5)))
    slot_count = case.table.shape[0]
    return case.but(
        table=table,
        seq_lens=spoil(list(case.seq_lens), lengths, how.lens_dtype),
        slots=spoil(list(case.slots), (*HOSTILE_SLOTS, slot_count, slot_count + 1), how.slot_dtype),
        extend_lens=None if extend is None else spoil(list(extend), HOSTILE_EXTENDS, how.extend_dtype),
    )
