"""Sizes past what one block of the kernel handles: long page tables, many requests, many steps, odd ratios."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.cases import random_table
from helpers.harness import Backend, Harness, refresh_once
from helpers.oracle import Case
from helpers.strategies import INT32_MAX, Inputs

SOME_PAGES = [255, 256, 257, 1023, 1025, 2100]
"""Around the kernel's blocks of 128 and 256 entries, and around eight of them."""

FAR_PAGES = [129, 256, 257, 641, 1281, 2305]
"""Where a row has one program: around its first block and the wide ones after it, for few steps and for many."""


@pytest.mark.parametrize("pages", SOME_PAGES)
def test_page_tables_longer_than_one_block(backend: Backend, pages: int) -> None:
    tokens = random_table(np.random.default_rng(1), 4, 2200 * 4, 4)
    lens = [pages * 4 - 3, pages * 4 - 1, 7]
    refresh_once(backend, Case(tokens, lens, [1, 2, 3], rows=3, page=4, offsets=[1, 2]))
    refresh_once(backend, Case(tokens, lens, [1, 2, 3], rows=3, page=4, max_pages=pages))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_page_tables_past_the_first_block_in_a_bucket_of_many_rows(backend: Backend, steps: int) -> None:
    """Three real rows, far apart in length, in a bucket whose rows have one program each."""
    tokens = random_table(np.random.default_rng(1), 4, 2600 * 2, 2)
    offsets = list(range(1, steps + 1))
    for pages in FAR_PAGES:
        lens = [pages * 2 - steps, 1, pages * 2 + 1 - steps]
        refresh_once(backend, Case(tokens, lens, [1, 2, 3], rows=70, ratio=2, page=2, offsets=offsets))


@pytest.mark.parametrize("mode", ["target_verify", "draft_extend"])
def test_far_pages_in_the_other_modes(backend: Backend, mode: str) -> None:
    tokens = random_table(np.random.default_rng(1), 4, 2600 * 2, 2)
    more = {"draft_token_num": 2} if mode == "target_verify" else {"extend_lens": [2, 0, 2]}
    for pages in FAR_PAGES:
        case = Case(tokens, [pages * 2 - 1, 5, pages], [1, 2, 3], rows=70, ratio=2, page=2, mode=mode, **more)
        refresh_once(backend, case)


def test_rows_with_few_pages_share_a_program(backend: Backend) -> None:
    """Three pages a row: a program of the page tables has 64 or 32 rows, and the last one's are not all there."""
    tokens = random_table(np.random.default_rng(1), 80, 3 * 4, 4)
    for rows in (1, 63, 64, 65, 79):
        lens = [q % 12 + 1 for q in range(rows)]
        slots = [q + 1 for q in range(rows)]
        for offsets in ([0], [0, 0], [0, 0, 0, 0]):
            refresh_once(backend, Case(tokens, lens, slots, rows=rows, page=4, offsets=offsets))
        refresh_once(
            backend, Case(tokens, lens[:1], slots[:1], rows=rows, page=4, mode="draft_extend", extend_lens=[1])
        )


def test_page_table_of_more_than_eight_thousand_entries(backend: Backend) -> None:
    tokens = random_table(np.random.default_rng(1), 3, 9000 * 4, 4)
    for length in (35_999, 4 * 8192, 5):
        refresh_once(backend, Case(tokens, [length, 9], [2, 1], rows=2, page=4))


@pytest.mark.parametrize("padding", ["count", "slot"])
def test_more_requests_than_a_block_sums(backend: Backend, padding: str) -> None:
    """A draft extend where the requests with rows are far apart, around every block's edge."""
    batch = 2500
    extends = [0] * batch
    for q, extend in {0: 1, 1022: 1, 1023: 2, 1024: 1, 2046: 1, 2047: 1, 2048: 3, 2499: 2}.items():
        extends[q] = extend
    slots = [q % 4 + 1 for q in range(batch)]
    if padding == "slot":
        slots[1023] = 0
    case = Case(
        random_table(np.random.default_rng(1), 6, 64, 64),
        [q % 50 + 4 for q in range(batch)],
        slots,
        rows=14,
        mode="draft_extend",
        extend_lens=extends,
        padding=padding,
    )
    refresh_once(backend, case)
    refresh_once(backend, case.but(rows=7))
    refresh_once(backend, case.but(num_padding=452))


@pytest.mark.parametrize("first", [INT32_MAX, 2**62, 13])
def test_extend_lengths_that_overflow_any_sum(backend: Backend, first: int) -> None:
    """Sums past 31 and 63 bits: the first request takes what room there is, the others come too late."""
    batch = 1100
    case = Case(
        random_table(np.random.default_rng(1), 6, 64, 64),
        [20] * batch,
        [1] * batch,
        rows=12,
        mode="draft_extend",
        extend_lens=[3, *[first] * (batch - 1)],
    )
    dtype = torch.int64 if first > INT32_MAX else torch.int32
    refresh_once(backend, case, Inputs(extend_dtype=dtype))


def test_sums_of_extend_lengths_in_a_bucket_of_a_million_rows(backend: Backend) -> None:
    """Even clipped to the bucket, the lengths of a few thousand requests add up to more than 31 bits."""
    if backend == Backend("triton", "cpu"):
        pytest.skip("a million rows take the interpreter an hour")
    rows = 1 << 20
    extends = [5, *[0] * 1023, *[INT32_MAX] * 3072]
    case = Case(
        random_table(np.random.default_rng(1), 3, 64, 64),
        [20] * len(extends),
        [1 if q < 1024 else 2 for q in range(len(extends))],
        rows=rows,
        mode="draft_extend",
        extend_lens=extends,
    )
    harness = Harness(backend, case, fields=["sequence_lengths", "row_req_pool_indices", "prefix_lengths"])
    harness.run()
    wanted = harness.arena.fresh()
    rest = torch.arange(1, rows - 4, dtype=torch.int32).clamp(max=20)
    wanted.region("sequence_lengths")[0].copy_(torch.cat([torch.arange(16, 21, dtype=torch.int32), rest]))
    wanted.region("row_req_pool_indices")[0].fill_(2)[:5] = 1
    wanted.region("prefix_lengths")[0].fill_(0)[:5] = 15
    difference = harness.arena.difference(wanted)
    assert difference is None, difference
    assert int(harness.plan.status()) == oracle.ROWS_EXCEED_BUCKET


@pytest.mark.parametrize("length", [2**31 + 5, 2**32 + 3, 2**62])
def test_extend_of_a_length_past_32_bits(backend: Backend, length: int) -> None:
    """Only the difference of a length and its extend has to be small: these rows have lengths 3, 4, 5 and so on."""
    case = Case(
        random_table(np.random.default_rng(1), 3, 64, 64),
        [length, 9],
        [1, 2],
        rows=5,
        mode="draft_extend",
        extend_lens=[length - 2, 1],
    )
    refresh_once(backend, case, Inputs(extend_dtype=torch.int64))


@pytest.mark.parametrize("steps", [8, 14, 16])
def test_many_steps_in_one_launch(backend: Backend, steps: int) -> None:
    tokens = random_table(np.random.default_rng(1), 4, 128, 8)
    case = Case(tokens, [1, 60, 126], [1, 2, 3], rows=3, page=8, offsets=list(range(1, steps + 1)))
    harness = refresh_once(backend, case)
    assert harness.plan.groups == (tuple(range(steps)),)


@pytest.mark.parametrize(("ratio", "page"), [(1, 1), (7, 7), (64, 64), (3, 96), (100, 200), (4, 512)])
def test_odd_ratios_and_pages(backend: Backend, ratio: int, page: int) -> None:
    width = 3 * page + 1
    tokens = random_table(np.random.default_rng(1), 4, width, page)
    lens = [0, ratio - 1, 2 * page - 1, width - 2]
    refresh_once(backend, Case(tokens, lens, [1, 2, 3, 1], rows=5, ratio=ratio, page=page, offsets=[1, 2]))
    verify = Case(tokens, lens, [1, 2, 3, 1], rows=16, ratio=ratio, page=page, mode="target_verify", draft_token_num=4)
    refresh_once(backend, verify)


def test_a_bucket_of_a_thousand_rows() -> None:
    rng = np.random.default_rng(1)
    tokens = random_table(rng, 60, 512, 64)
    case = Case(
        tokens, rng.integers(0, 500, 1000).tolist(), rng.integers(0, 60, 1000).tolist(), rows=1000, offsets=[1, 2]
    )
    refresh_once(Backend("host", "cpu"), case)
