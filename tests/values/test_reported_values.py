"""Faults of values and padding that were reported against neighbouring software.

Each docstring begins with the public thread that reported the fault.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import oracle
from helpers.cases import random_table, table_of
from helpers.harness import Backend, Harness, refresh_once
from helpers.oracle import FIELDS, Case
from helpers.strategies import Inputs

RNG_SEED = 20


def table(slots: int, width: int, page: int = 64) -> np.ndarray:
    """A random table that is the same in every run."""
    return random_table(np.random.default_rng(RNG_SEED), slots, width, page)


def column(harness: Harness, field: str, step: int = 0) -> list[int]:
    """A vector as the graph would read it."""
    return harness.arena.region(field)[step].tolist()


def test_padding_rows_stay_inert_at_every_step(backend: Backend) -> None:
    """vllm-project/vllm pull 43682.

    The step's offset must not reach a padding row, nor a garbage slot 0 its page table.
    """
    garbage = table(4, 64)
    garbage[0] = -1
    harness = refresh_once(
        backend, Case(garbage, [10, 20, 0, 0], [1, 2, 3, 3], rows=4, offsets=[1, 2, 3], num_padding=2)
    )
    for step in range(3):
        assert column(harness, "sequence_lengths", step) == [11 + step, 21 + step, 1, 1]
        assert column(harness, "row_req_pool_indices", step) == [1, 2, 0, 0]
        assert harness.arena.region("page_table")[step, 2:, 0].tolist() == [0, 0]


def test_stale_slot_of_a_padding_row_never_indexes(backend: Backend) -> None:
    """sgl-project/sglang pull 22958. A padding row still names a slot that is far outside the table."""
    harness = refresh_once(backend, Case(table(8, 64), [4, 5, 6, 7], [3, 1, 2, 9999], rows=4, num_padding=1))
    assert column(harness, "row_req_pool_indices") == [3, 1, 2, 0]


@pytest.mark.parametrize("num_padding", [0, 1])
@pytest.mark.parametrize("width", [4, 6])
def test_extend_of_a_padding_length_never_goes_below_zero(backend: Backend, width: int, num_padding: int) -> None:
    """sgl-project/sglang pull 30378, 31270. A request of length 1 that extends by the whole window."""
    case = Case(
        table(4, 128),
        [50, 1],
        [1, 2],
        rows=2 * width,
        mode="draft_extend",
        extend_lens=[width, width],
        num_padding=num_padding,
    )
    harness = refresh_once(backend, case)
    assert min(column(harness, "sequence_lengths")) >= 1
    assert min(column(harness, "logical_positions")) >= 0
    assert min(column(harness, "prefix_lengths")) >= 0


def test_each_mode_has_its_own_lengths(backend: Backend) -> None:
    """lightseekorg/tokenspeed pull 348.

    The same request of length 10 in every mode: taking one formula for another shows.
    """
    base = Case(table(4, 64), [10], [1], rows=4)
    rounds = {
        "decode": base.but(offsets=[1]),
        "target_verify": base.but(mode="target_verify", draft_token_num=4),
        "draft_extend": base.but(mode="draft_extend", extend_lens=[4]),
    }
    wanted = {"decode": [11, 1, 1, 1], "target_verify": [11, 12, 13, 14], "draft_extend": [7, 8, 9, 10]}
    prefixes = {"decode": [10, 0, 0, 0], "target_verify": [10] * 4, "draft_extend": [6] * 4}
    for mode, case in rounds.items():
        harness = refresh_once(backend, case)
        assert column(harness, "sequence_lengths") == wanted[mode]
        assert column(harness, "prefix_lengths") == prefixes[mode]
        for other, other_round in rounds.items():
            if other != mode:
                wrong = harness.arena.fresh()
                wrong.write(oracle.refresh(other_round))
                assert harness.arena.difference(wrong) is not None


def test_verify_rows_of_the_second_request_start_after_the_window(backend: Backend) -> None:
    """sgl-project/sglang pull 27545."""
    harness = refresh_once(
        backend, Case(table(4, 64), [10, 30], [1, 2], rows=16, mode="target_verify", draft_token_num=8)
    )
    assert column(harness, "row_req_pool_indices") == [1] * 8 + [2] * 8
    assert column(harness, "sequence_lengths") == [*range(11, 19), *range(31, 39)]


def test_group_boundary_inside_the_draft(backend: Backend) -> None:
    """vllm-project/vllm pull 41162. The second of three steps completes a compressed group."""
    tokens = table(6, 64)
    harness = refresh_once(backend, Case(tokens, [6], [5], rows=1, offsets=[1, 2, 3]))
    steps = range(3)
    assert [column(harness, "sequence_lengths", s) for s in steps] == [[7], [8], [9]]
    assert [column(harness, "compressed_lengths", s) for s in steps] == [[1], [2], [2]]
    assert [column(harness, "write_locs", s) for s in steps] == [[0], [int(tokens[5, 7]) // 4], [0]]
    assert [column(harness, "pending_ring_slots", s) for s in steps] == [[22], [23], [20]]


def test_compressed_length_counts_the_new_token(backend: Backend) -> None:
    """GDzhu01/vllm-ascend-deepseekv4 issue 76."""
    harness = refresh_once(backend, Case(table(4, 64), [2, 3, 4], [1, 2, 3], rows=3))
    assert column(harness, "compressed_lengths") == [0, 1, 1]


def test_row_that_turns_into_padding_is_reset_in_every_field(backend: Backend) -> None:
    """sgl-project/sglang pull 10892, 24401. A long request was in the row one round before."""
    case = Case(table(5, 4096), [4000] * 4, [1, 2, 3, 4], rows=4, max_pages=64)
    harness = Harness(backend, case)
    harness.refresh()
    before = {name: harness.arena.region(name)[0, 3].clone() for name in FIELDS}
    harness.run(case.but(num_padding=1))
    inert = oracle.outputs(case, [oracle.INERT])
    for name in FIELDS:
        row = harness.arena.region(name)[0, 3]
        if name == "page_table":
            assert row[:1].tolist() == inert.live[0]
        else:
            assert row.tolist() == inert.values[name][0], name
            assert name == "write_locs" or not torch.equal(row, before[name]), f"{name} does not tell the two apart"


@pytest.mark.parametrize("mode", oracle.MODES)
def test_garbage_in_the_table_past_each_length(backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 1782.

    Entries past a length were never allocated, and slot 0 holds whatever padding left there.
    """
    tokens = table(5, 256)
    lens = [5, 64, 120]
    for slot, length in zip([1, 2, 3], lens, strict=True):
        tokens[slot, length + 4 :: 2] = 2**31 - 1
        tokens[slot, length + 5 :: 2] = -1
    tokens[0, ::2], tokens[0, 1::2] = 2**31 - 1, -1
    case = Case(
        tokens,
        [*lens, 9],
        [1, 2, 3, 4],
        rows=16,
        mode=mode,
        offsets=[1, 2, 3] if mode == "decode" else [1],
        draft_token_num=4 if mode == "target_verify" else None,
        extend_lens=[3, 1, 2, 2] if mode == "draft_extend" else None,
        num_padding=1,
    )
    harness = refresh_once(backend, case)
    real = {"decode": 3, "target_verify": 12, "draft_extend": 6}[mode]
    assert column(harness, "write_locs")[real:] == [0] * (16 - real)


@pytest.mark.parametrize("entry", [-1, -4, -65, -(2**31)])
def test_negative_table_entries_count_as_zero(backend: Backend, entry: int) -> None:
    """sgl-project/sglang pull 1782: where such an entry is reached: by a write, by a live page, and by an inert row."""
    tokens = table(3, 256)
    tokens[1] = tokens[0] = entry
    case = Case(tokens, [63, 200, 9999], [1, 1, 2], rows=4)
    harness = refresh_once(backend, case)
    assert column(harness, "write_locs") == [0, 0, 0, 0]
    assert harness.arena.region("page_table")[0, 1].tolist() == [0, 0, 0, 0]
    assert harness.arena.region("page_table")[0, 2:, 0].tolist() == [0, 0]
    refresh_once(backend, case.but(ratio=1))


def test_slot_zero_is_a_slot_unless_it_means_padding(backend: Backend) -> None:
    """The padding rule decides, not the number."""
    counted = Case(table(3, 256), [63, 200], [0, 1], rows=3)
    assert column(refresh_once(backend, counted), "sequence_lengths") == [64, 201, 1]
    assert column(refresh_once(backend, counted.but(padding="slot")), "sequence_lengths") == [1, 201, 1]


@pytest.mark.parametrize("mode", oracle.MODES)
def test_slots_and_lengths_at_both_ends_of_the_table(backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 22958. The last slot and the full width are served, one more is not."""
    case = Case(
        table(4, 64),
        [20, 20, 20, 64, 63, 62, 61],
        [3, 4, -1, 1, 2, 3, 0],
        rows=14,
        mode=mode,
        offsets=[0, 1, 2] if mode == "decode" else [1],
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[1, 1, 1, 2, 2, 2, 2] if mode == "draft_extend" else None,
    )
    harness = refresh_once(backend, case)
    assert int(harness.plan.status()) & oracle.SLOT_OUT_OF_TABLE


def test_page_table_narrower_than_the_draft_reaches(backend: Backend) -> None:
    """sgl-project/sglang pull 29379. The draft crosses into a page for which the buffer has no column."""
    for max_pages in (3, 2, 1):
        case = Case(table(4, 136), [127, 126], [1, 2], rows=2, offsets=[1, 2, 3], max_pages=max_pages)
        refresh_once(backend, case)
        refresh_once(backend, case, page_gap=1)


def test_extend_packs_rows_around_a_request_without_any(backend: Backend) -> None:
    """sgl-project/sglang pull 35848."""
    case = Case(table(4, 64), [10, 20, 30], [1, 2, 3], rows=8, mode="draft_extend", extend_lens=[3, 0, 2])
    harness = refresh_once(backend, case)
    assert column(harness, "sequence_lengths") == [8, 9, 10, 29, 30, 1, 1, 1]
    assert column(harness, "row_req_pool_indices") == [1, 1, 1, 3, 3, 0, 0, 0]


def test_verify_batch_of_a_bucket_for_more_requests(backend: Backend) -> None:
    """sgl-project/sglang pull 39257. Seven requests of six rows, in a bucket made for eight."""
    lens = [10, 20, 30, 40, 50, 60, 70]
    tokens = table(9, 128)
    for rows in (42, 48):
        case = Case(tokens, lens, range(1, 8), rows=rows, mode="target_verify", draft_token_num=6)
        harness = refresh_once(backend, case)
        assert column(harness, "row_req_pool_indices") == [q for q in range(1, 8) for _ in range(6)] + [0] * (rows - 42)
    padded = Case(
        tokens, [*lens, 99], [*range(1, 8), 8], rows=48, mode="target_verify", draft_token_num=6, num_padding=1
    )
    harness = refresh_once(backend, padded)
    assert column(harness, "row_req_pool_indices")[42:] == [0] * 6


def test_more_packed_rows_than_the_bucket_holds(backend: Backend) -> None:
    """vllm-project/vllm issue 32591."""
    case = Case(table(4, 64), [10, 20, 30], [1, 2, 3], rows=8, mode="draft_extend", extend_lens=[3, 4, 2])
    harness = refresh_once(backend, case)
    assert column(harness, "row_req_pool_indices") == [1] * 3 + [2] * 4 + [3]
    assert int(harness.plan.status()) == oracle.ROWS_EXCEED_BUCKET


def test_page_ids_of_scattered_pages(backend: Backend) -> None:
    """sgl-project/sglang pull 15469. Pages are in no order, and the write lands in the middle of one."""
    tokens = table_of({1: [7, 3, 9]}, 2, 768, 256)
    harness = refresh_once(backend, Case(tokens, [259], [1], rows=1, page=256))
    assert column(harness, "write_locs") == [192]
    assert harness.arena.region("page_table")[0, 0, :2].tolist() == [7, 3]
    harness = refresh_once(backend, Case(tokens, [513], [1], rows=1, page=256))
    assert harness.arena.region("page_table")[0, 0].tolist() == [7, 3, 9]


@pytest.mark.parametrize("mode", oracle.MODES)
def test_empty_batch_launches_and_writes_nothing(backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 33892: first half."""
    case = Case(
        table(4, 64),
        [],
        [],
        rows=4,
        mode=mode,
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[] if mode == "draft_extend" else None,
        num_padding=3,
    )
    harness = Harness(backend, case)
    harness.refresh()
    harness.arena.assert_untouched()
    assert harness.planner.stats()["launches"] == 0


@pytest.mark.parametrize("mode", oracle.MODES)
def test_batch_of_padding_alone(backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 33892: second half. What the tensors hold does not count."""
    case = Case(
        table(4, 64),
        [10, 99999, -5, 0],
        [1, 9999, -1, 2],
        rows=8,
        mode=mode,
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[3, -2, 0, 99] if mode == "draft_extend" else None,
        num_padding=4,
    )
    harness = refresh_once(backend, case)
    assert column(harness, "sequence_lengths") == [1] * 8
    assert column(harness, "row_req_pool_indices") == [0] * 8


def test_every_backend_gives_the_same_matrix(backend: Backend) -> None:
    """sgl-project/sglang pull 26239. The way that runs without graphs is no other computation."""
    case = Case(table(4, 256), [62, 200], [1, 2], rows=2, offsets=[1, 2, 3])
    harness = refresh_once(backend, case)
    fallback = refresh_once(Backend("host", "cpu"), case)
    for name in FIELDS:
        assert torch.equal(harness.arena.blocks[name].cpu(), fallback.arena.blocks[name]), name


@pytest.mark.parametrize("mode", oracle.MODES)
def test_every_output_between_sentinels(backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 27338. Rows at both ends of every buffer, for every alignment of its first element."""
    batch = 3
    case = Case(
        table(5, 192),
        [63, 100, 190],
        [1, 2, 3],
        rows=9,
        mode=mode,
        offsets=[1, 2] if mode == "decode" else [1],
        draft_token_num=3 if mode == "target_verify" else None,
        extend_lens=[3] * batch if mode == "draft_extend" else None,
    )
    for shift in range(4):
        refresh_once(backend, case, page_gap=shift, shift=shift)


@pytest.mark.parametrize("mode", oracle.MODES)
def test_dtypes_of_lengths_and_slots_switch_at_one_address(backend: Backend, mode: str) -> None:
    """sgl-project/sglang pull 14654. Nothing may be remembered about an address but the address."""
    case = Case(
        table(5, 128),
        [60, 33],
        [3, 1],
        rows=6,
        mode=mode,
        draft_token_num=3 if mode == "target_verify" else None,
        extend_lens=[2, 3] if mode == "draft_extend" else None,
    )
    harness = Harness(backend, case)
    memory = {name: torch.zeros(32, dtype=torch.uint8, device=backend.device) for name in ("lens", "slots", "extend")}
    for lens_dtype, slot_dtype in [(a, b) for a in (torch.int64, torch.int32) for b in (torch.int32, torch.int64)] * 2:
        how = Inputs(lens_dtype, slot_dtype, extend_dtype=slot_dtype)
        views = {}
        for name, dtype, values in (
            ("lens", how.lens_dtype, case.seq_lens),
            ("slots", how.slot_dtype, case.slots),
            ("extend", how.extend_dtype, case.extend_lens or [0, 0]),
        ):
            memory[name].fill_(0x7F)
            views[name] = memory[name].view(dtype)[:2].copy_(torch.tensor(list(values), dtype=dtype))
        harness.arena.poison()
        extend = views["extend"] if mode == "draft_extend" else None
        harness.plan.run(views["lens"], views["slots"], extend_lens=extend)
        harness.check()
