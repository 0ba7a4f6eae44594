"""Rounds that no engine should ask for: every hostile number with every other."""

from __future__ import annotations

from itertools import product

import numpy as np

from helpers import oracle
from helpers.cases import random_table
from helpers.oracle import Case
from helpers.strategies import HOSTILE_EXTENDS, HOSTILE_LENGTHS, HOSTILE_SLOTS, INT32_MAX, Inputs, clip

SLOTS, WIDTH, PAGE, RATIO = 6, 136, 16, 4


def table() -> np.ndarray:
    """A table with entries that were never allocated."""
    rng = np.random.default_rng(13)
    tokens = random_table(rng, SLOTS, WIDTH, PAGE)
    spoilt = rng.random(tokens.shape) < 0.25
    tokens[spoilt] = rng.choice([-1, -70, -(2**31), INT32_MAX], int(spoilt.sum()))
    return tokens


def hostile_case(mode: str, how: Inputs, *, full: bool = True) -> Case:
    """Every hostile length with every hostile slot, among good ones; or, not in full, each with a few others."""
    lengths = [*HOSTILE_LENGTHS, WIDTH - 2, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH + 3, 1, 5, 64]
    slots = [*HOSTILE_SLOTS, SLOTS, SLOTS - 1, 0, 2]
    triples: list[tuple[int, int, int]]
    if mode == "draft_extend":
        extends = [e for e in (*HOSTILE_EXTENDS, 0, 1, 2, 5) if e < 1000] if full else [-1, 5]
        triples = list(product(lengths, slots[-4:] if full else [2], extends))
        triples += [(9, r, 2) for r in slots]
        triples += [(5, 2, 10), (7, 1, 1000), (9, 1, 2**62), (3, 3, -1)]
    elif full:
        triples = [(n, r, 0) for n, r in product(lengths, slots)]
    else:
        triples = [(n, 2, 0) for n in lengths] + [(n, r, 0) for n, r in product((5, WIDTH + 1), slots)]
    window = 3
    batch = len(triples)
    rows = {"decode": batch + 3, "target_verify": batch * window + 3}.get(
        mode, sum(max(e, 0) for n, r, e in triples if e < 1000) + 20
    )
    return Case(
        table(),
        clip([n for n, _, _ in triples], how.lens_dtype),
        clip([r for _, r, _ in triples], how.slot_dtype),
        rows=rows,
        ratio=RATIO,
        page=PAGE,
        mode=mode,
        offsets=[1, 2, 3] if mode == "decode" else [1],
        draft_token_num=window if mode == "target_verify" else None,
        extend_lens=clip([e for _, _, e in triples], how.extend_dtype) if mode == "draft_extend" else None,
    )


def status_bits(mode: str) -> int:
    """What such a round raises."""
    every_row = oracle.SLOT_OUT_OF_TABLE | oracle.LENGTH_NOT_POSITIVE | oracle.LENGTH_EXCEEDS_TABLE
    packed = oracle.ROWS_EXCEED_BUCKET | oracle.EXTEND_LENGTH_NEGATIVE
    return every_row | packed if mode == "draft_extend" else every_row
