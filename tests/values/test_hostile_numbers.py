"""Numbers that no engine should hand over: inert rows and status bits. The same on a GPU is in gpu/test_hostile.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.cases import random_table
from helpers.harness import HOST, Backend, Harness, refresh_once
from helpers.hostile import PAGE, RATIO, WIDTH, hostile_case, status_bits
from helpers.oracle import MODES, Case
from helpers.strategies import Inputs, clip

DTYPES = list(product((torch.int64, torch.int32), repeat=2))


@pytest.mark.parametrize("form", ["contiguous", "shifted", "strided"])
@pytest.mark.parametrize(("lens_dtype", "slot_dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_in_every_form(
    mode: str, lens_dtype: torch.dtype, slot_dtype: torch.dtype, form: str
) -> None:
    how = Inputs(lens_dtype, slot_dtype, lens_dtype, form, form, form)
    harness = refresh_once(HOST, hostile_case(mode, how), how, page_gap=1, shift=1)
    assert int(harness.plan.status()) == status_bits(mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_with_every_other(backend: Backend, mode: str) -> None:
    how = Inputs(slot_dtype=torch.int64, extend_dtype=torch.int64)
    case = hostile_case(mode, how, full=backend != Backend("triton", "cpu"))
    harness = refresh_once(backend, case, how)
    assert int(harness.plan.status()) == status_bits(mode)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("length", "extend", "status"),
    [(-5, 2, oracle.LENGTH_NOT_POSITIVE), (5, -2, oracle.EXTEND_LENGTH_NEGATIVE), (65, 1, oracle.LENGTH_EXCEEDS_TABLE)],
)
def test_extends_of_one_dtype(backend: Backend, length: int, extend: int, status: int, dtype: torch.dtype) -> None:
    """A length below 0 is too small, whatever its dtype, and none that is too large."""
    table = random_table(np.random.default_rng(3), 3, 64, 64)
    case = Case(table, [7, length], [1, 2], rows=6, mode="draft_extend", extend_lens=[1, extend])
    harness = refresh_once(backend, case, Inputs(lens_dtype=dtype, slot_dtype=dtype, extend_dtype=dtype))
    assert int(harness.plan.status()) == status


@pytest.mark.parametrize("mode", MODES)
def test_hostile_numbers_in_padding_raise_nothing(backend: Backend, mode: str) -> None:
    case = hostile_case(mode, Inputs(), full=False)
    harness = Harness(backend, case)
    harness.refresh(case.but(num_padding=len(case.seq_lens)))
    assert int(harness.plan.status()) == 0


def test_status_gathers_what_happened_in_several_runs(backend: Backend) -> None:
    """Sticky: neither a later fault of another kind nor a clean run may take a bit away."""
    case = Case(random_table(np.random.default_rng(3), 3, 64, 64), [5, 6], [1, 2], rows=3, offsets=[0, 1])
    harness = Harness(backend, case)
    assert int(harness.plan.status()) == 0
    seen = 0
    for changes, bit in (
        ({"slots": [1, 3]}, oracle.SLOT_OUT_OF_TABLE),
        ({"seq_lens": [5, -9]}, oracle.LENGTH_NOT_POSITIVE),
        ({}, 0),
        ({"seq_lens": [65, 6]}, oracle.LENGTH_EXCEEDS_TABLE),
        ({}, 0),
    ):
        harness.run(case.but(**changes))
        seen |= bit
        assert int(harness.plan.status()) == seen
        assert harness.plan.status_word.tolist() == [seen]
    harness.plan.reset_status()
    harness.refresh()


WIDE_SLOTS = [1 << 32, -(1 << 32), (1 << 32) + 2, -(1 << 32) + 2, 1 << 31, (1 << 32) - 1, 1 << 62, -(1 << 63)]
NARROW_SLOTS = [(1 << 31) - 1, -(1 << 31), -(1 << 31) + 2, -1]


@pytest.mark.parametrize(
    ("slot", "dtype"),
    [*product(WIDE_SLOTS, [torch.int64]), *product(NARROW_SLOTS, [torch.int32])],
    ids=str,
)
@pytest.mark.parametrize("padding", ["count", "slot"])
@pytest.mark.parametrize("mode", MODES)
def test_a_slot_is_more_than_its_lower_half(
    backend: Backend, mode: str, padding: str, slot: int, dtype: torch.dtype
) -> None:
    """One whose lower half is 0 is no padding, and none is the slot that its lower half, or less of it, would be."""
    tokens = random_table(np.random.default_rng(3), 3, 64, 64)
    more = {"target_verify": {"draft_token_num": 2}, "draft_extend": {"extend_lens": [1, 2]}}
    offsets = [1] if mode == "decode" else [0]
    case = Case(
        tokens,
        [5, 6],
        [slot, 2],
        rows=4,
        mode=mode,
        offsets=offsets,
        padding=padding,
        **more.get(mode, {}),  # type: ignore[arg-type]
    )
    harness = refresh_once(backend, case, Inputs(slot_dtype=dtype))
    assert int(harness.plan.status()) == oracle.SLOT_OUT_OF_TABLE


def test_status_is_of_one_plan_alone(backend: Backend) -> None:
    case = Case(random_table(np.random.default_rng(3), 3, 64, 64), [5, 6], [1, 2], rows=3)
    first = Harness(backend, case)
    second = Harness(backend, case, planner=first.planner)
    first.run(case.but(slots=[9, 1]))
    assert int(first.plan.status()) == oracle.SLOT_OUT_OF_TABLE
    assert int(second.plan.status()) == 0


@pytest.mark.parametrize("mode", ["decode", "target_verify", "draft_extend"])
@pytest.mark.parametrize(("width", "max_pages"), [(64, 0), (7, 3)], ids=["no columns", "table under a page"])
def test_inert_rows_where_no_page_exists(backend: Backend, mode: str, width: int, max_pages: int) -> None:
    """They have no first page to show: nothing may be written where it would be, nor between the rows."""
    more: dict[str, Any] = {"offsets": [1, 3]}
    if mode != "decode":
        more = {"draft_token_num": 2} if mode == "target_verify" else {"extend_lens": [1, 2]}
    table = random_table(np.random.default_rng(3), 3, width, 8)
    case = Case(table, [4, 99], [1, 2], rows=6, page=8, mode=mode, max_pages=max_pages, **more)
    refresh_once(backend, case, page_gap=2)
    refresh_once(backend, case.but(slots=[7, -1]), page_gap=2)


@pytest.mark.parametrize(("given", "as_good_as"), [(2**63, 2), (2**200, 2), (-(2**63) - 1, 0), (-(2**200), 0)])
def test_padding_past_64_bits_is_clamped_as_any_other(backend: Backend, given: int, as_good_as: int) -> None:
    case = Case(random_table(np.random.default_rng(3), 3, 64, 64), [5, 6], [1, 2], rows=3, num_padding=as_good_as)
    harness = Harness(backend, case)
    harness.run(case.but(num_padding=given))
    harness.check(case)


FARTHEST = 1 << 29
"""The largest offset."""


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("offsets", [[FARTHEST - 1, 0], [FARTHEST, 0], [1, FARTHEST - 1, 3]], ids=str)
def test_offsets_that_go_as_far_as_they_may(backend: Backend, offsets: list[int], dtype: torch.dtype) -> None:
    """Lengths that such an offset lifts into the table or past it, and those that it would lift out of 32 bits."""
    near = [0, 1, 5, WIDTH, WIDTH + 1]
    far = [sign * (1 << 30) + more for sign in (1, -1) for more in (-1, 0, 1, 2)]
    halves = [high + more for high in (1 << 32, -(1 << 32)) for more in (0, 5, -FARTHEST, -FARTHEST + 5)]
    ends = [torch.iinfo(dtype).min, torch.iinfo(dtype).max, -(1 << 31), -(1 << 31) - 1, (1 << 31) - 1, 1 << 31]
    lengths = {more - offset for more in near for offset in (0, *offsets)}.union(far, halves, ends)
    tokens = random_table(np.random.default_rng(3), 3, WIDTH, PAGE)
    empty = Case(tokens, [], [], rows=len(lengths) + 1, ratio=RATIO, page=PAGE, offsets=offsets)
    # One run for each status, since it is all that tells a length that is too small from one that is too large.
    by_status: dict[int, list[int]] = {}
    for length in sorted(set(clip(sorted(lengths), dtype))):
        by_status.setdefault(oracle.refresh(empty.but(seq_lens=[length], slots=[2])).status, []).append(length)
    assert set(by_status) == {2, 4, 6}
    harness = Harness(backend, empty)
    for some in by_status.values():
        harness.refresh(empty.but(seq_lens=some, slots=[2] * len(some)), Inputs(lens_dtype=dtype))


@pytest.mark.parametrize(
    ("request_", "more"),
    [((5, 99, 4), 0), ((5, -1, 4), 0), ((-9, 2, 4), 0), ((65, 2, 4), 0), ((5, 2, -4), oracle.EXTEND_LENGTH_NEGATIVE)],
    ids=str,
)
def test_rows_past_the_bucket_raise_nothing_else(backend: Backend, request_: tuple[int, int, int], more: int) -> None:
    """They do not exist, so nothing is wrong with them; the batch's own extend lengths are looked at all the same."""
    table = random_table(np.random.default_rng(3), 3, 64, 64)
    lengths, slots, extends = ([good, bad] for good, bad in zip((9, 1, 7), request_, strict=True))
    case = Case(table, lengths, slots, rows=6, mode="draft_extend", extend_lens=extends)
    assert int(refresh_once(backend, case).plan.status()) == oracle.ROWS_EXCEED_BUCKET | more
