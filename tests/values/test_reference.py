"""The torch reference against the plain oracle, and the arena that both are written to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracle
from helpers.arena import GUARD, Arena
from helpers.cases import CASES, case_of
from helpers.hostile import hostile_case, status_bits
from helpers.machine import needs_gpu
from helpers.oracle import FIELDS, MODES, Case
from helpers.strategies import Inputs, cases
from qsa_group import FIELDS as PRODUCT_FIELDS
from qsa_group.demo import reference
from qsa_group.demo.arena import POISON

MANY = settings(max_examples=settings().max_examples * 4)
WIDE = Inputs(slot_dtype=torch.int64, extend_dtype=torch.int64)


def layout_of(case: Case, device: str = "cpu") -> reference.Layout:
    """What the plan of a round fixes."""
    return reference.Layout(
        torch.from_numpy(case.table).to(device),
        case.ratio,
        case.page,
        case.rows,
        case.mode,
        case.offsets,
        case.draft_token_num or 1,
        case.padding,
        case.ring,
    )


def live_of(case: Case, device: str = "cpu") -> reference.LiveInputs:
    """The live inputs of a round."""
    numbers = (case.seq_lens, case.slots, case.extend_lens or [])
    lens, slots, extend = (torch.tensor(values, dtype=torch.int64, device=device) for values in numbers)
    return reference.LiveInputs(lens, slots, case.num_padding, None if case.extend_lens is None else extend)


def assert_agrees(case: Case, device: str = "cpu", more_rows: int = 0, **form: Any) -> int:
    """The reference leaves what the oracle expects, and has its status."""
    arena = Arena(case.steps, case.rows + more_rows, case.ratio, case.page_columns, device, **form)
    layout, live = layout_of(case, device), live_of(case, device)
    reference.refresh(layout, live, arena)
    plain = oracle.refresh(case)
    arena.assert_holds(plain)
    assert int(reference.status(layout, live)) == plain.status
    return plain.status


def test_the_fields_are_those_of_the_contract() -> None:
    assert PRODUCT_FIELDS == FIELDS


@pytest.mark.parametrize("handed", CASES, ids=lambda handed: handed["name"])
def test_handed_cases(handed: dict[str, Any]) -> None:
    assert_agrees(case_of(handed))


@MANY
@given(case=cases(), more_rows=st.integers(0, 3))
def test_random_rounds(case: Case, more_rows: int) -> None:
    """Rows past those of the bucket are left alone."""
    assert_agrees(case, more_rows=more_rows)


@MANY
@given(case=cases(hostile=True, how=WIDE))
def test_hostile_rounds(case: Case) -> None:
    assert_agrees(case)


@given(
    case=cases(),
    fields=st.sets(st.sampled_from(FIELDS), min_size=1),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
)
def test_absent_buffers_and_gaps(case: Case, fields: set[str], gaps: tuple[int, int, int]) -> None:
    assert_agrees(case, fields=fields, page_gap=gaps[0], ring_gap=gaps[1], shift=gaps[2])


@pytest.mark.parametrize("mode", MODES)
def test_every_hostile_number_with_every_other(mode: str) -> None:
    assert assert_agrees(hostile_case(mode, WIDE)) == status_bits(mode)


@pytest.mark.parametrize(("length", "extend"), [(2**63 - 1, 2**63 - 1), (2**62, 2**62 - 5), (-(2**63), 2**63 - 1)])
def test_extends_as_long_as_an_int64(length: int, extend: int) -> None:
    """Such a request may have rows that can be served, and its sums must not overflow."""
    case = hostile_case("draft_extend", WIDE, full=False)
    assert_agrees(case.but(seq_lens=[5, length, 9], slots=[1, 2, 3], extend_lens=[1, extend, 1], rows=12))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("mode", MODES)
def test_on_a_gpu(mode: str) -> None:
    assert assert_agrees(hostile_case(mode, WIDE), "cuda") == status_bits(mode)


def test_a_bucket_without_rows() -> None:
    case = case_of(next(handed for handed in CASES if handed["mode"] == "draft_extend"))
    assert assert_agrees(case.but(rows=0, slots=[1] * len(case.slots))) & oracle.ROWS_EXCEED_BUCKET


def arena_of(fields: Iterable[str] = FIELDS) -> Arena:
    return Arena(2, 5, 4, 8, fields=fields, page_gap=1)


class TestArena:
    @pytest.mark.parametrize("name", FIELDS)
    @pytest.mark.parametrize("step", [0, 1])
    def test_one_wrong_entry_is_found(self, name: str, step: int) -> None:
        arena = arena_of()
        assert arena.difference(arena.fresh()) is None
        matrix = name in ("ring_group_locs", "page_table")
        arena.region(name)[step, 3].view(-1)[1 if matrix else 0] = 17
        difference = arena.difference(arena.fresh())
        assert difference is not None
        assert (difference.step, difference.row, difference.field) == (step, 3, name)
        assert (difference.found, difference.count) == (17, 1)
        place = f"step {step}: {name}[3{', 1' if matrix else ''}] is 17, expected {difference.expected}"
        assert str(difference) == place + ", it had to be left alone (1 wrong in all)"

    @pytest.mark.parametrize(("name", "element"), [("write_locs", 5), ("write_locs", -1), ("page_table", 8)])
    def test_a_write_outside_of_a_buffer_is_found(self, name: str, element: int) -> None:
        """Behind the last row, before the first, and between two rows."""
        arena = arena_of()
        start = arena.region(name)[1].storage_offset() - arena.blocks[name][1].storage_offset()
        arena.blocks[name][1, start + element] = 17
        words = f"step 1: {element} elements from the start of {name}, outside of its rows, is 17"
        assert words in str(arena.difference(arena.fresh()))

    @pytest.mark.parametrize("name", ["write_locs", "pending_ring_slots"])
    def test_an_entry_that_was_not_written_is_told(self, name: str) -> None:
        arena = arena_of()
        wanted = arena.fresh()
        wanted.region(name)[0, 2] = 4
        assert "expected 4, it was not written (1 wrong in all)" in str(arena.difference(wanted))

    def test_the_first_difference_is_that_of_the_first_step_and_row(self) -> None:
        arena = arena_of()
        for name, step, row in (("sequence_lengths", 1, 0), ("prefix_lengths", 0, 4), ("logical_positions", 0, 3)):
            arena.region(name)[step, row] = 17
        arena.region("page_table")[0, 3] = 18
        difference = arena.difference(arena.fresh())
        assert difference is not None
        assert (difference.step, difference.row, difference.field) == (0, 3, "logical_positions")
        assert difference.count == 3 + 8

    def test_every_element_of_the_memory_is_compared(self) -> None:
        arena = Arena(3, 5, 3, 7, page_gap=1, ring_gap=2, shift=1)
        assert sum(block.numel() * block.element_size() for block in arena.blocks.values()) == 8 * len(arena.memory)
        assert all(bool((block[0, :8] == block[0, 0]).all()) for block in arena.blocks.values())
        assert int(arena.blocks["write_locs"][0, 0]) == POISON

    def test_every_buffer_has_a_guard_on_each_side_and_is_shifted(self) -> None:
        arena = Arena(2, 5, 3, 7, page_gap=1, ring_gap=2, shift=1)
        for name in FIELDS:
            block, region = arena.blocks[name], arena.region(name)
            for step in range(2):
                first = region[step].storage_offset() - block[step].storage_offset()
                last = first + 4 * region.stride(1) + (region.shape[2] - 1 if region.ndim == 3 else 0)
                assert first == GUARD + 1
                assert last + GUARD < block.shape[1]

    def test_absent_buffers(self) -> None:
        arena = arena_of(["logical_positions", "sequence_lengths"])
        assert [list(arena.step(step)) for step in range(2)] == [["sequence_lengths", "logical_positions"]] * 2
