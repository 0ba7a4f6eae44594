"""The kernel gets every word under its name, and a type for every word."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from helpers.oracle import MODES
from qsa_group import FIELDS as BUFFER_NAMES
from qsa_group.kernel import ARGUMENT_NAMES, GroupVariant, KernelVariant, Tiling, argument_lengths

BUFFER_SETS = (
    BUFFER_NAMES,
    ("sequence_lengths", "row_req_pool_indices", "logical_positions"),
    ("page_table",),
    tuple(name for name in BUFFER_NAMES if name != "page_table"),
)
SIZES = (1, 2, 3, 4, 7, 16)


def group_variant(mode: str = "decode", num_steps: int = 1, buffers: tuple[str, ...] = BUFFER_NAMES) -> GroupVariant:
    return GroupVariant(mode, num_steps, buffers, 4, 64, 4, Tiling(lanes=128, block=64, wide=256, num_warps=2))


def flattened(values: Any) -> Iterator[Any]:
    """The plain values of nested tuples, in order; an absent argument is none of them."""
    for value in values:
        if isinstance(value, tuple):
            yield from flattened(value)
        elif value is not None:
            yield value


@pytest.mark.parametrize("buffers", BUFFER_SETS, ids=len)
@pytest.mark.parametrize("num_steps", SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_every_word_has_its_place(mode: str, num_steps: int, buffers: tuple[str, ...]) -> None:
    words = count()
    begins, (group,), _ = KernelVariant((group_variant(mode, num_steps, buffers),)).arguments(words)
    assert begins is None
    assert group._fields == ARGUMENT_NAMES
    for argument, length in zip(group, argument_lengths(num_steps, buffers), strict=True):
        assert isinstance(argument, int) if length is None else len(argument or ()) == length
    assert list(flattened(group)) == list(range(next(words))), "all words, in order, and not one more"


def test_words_by_name() -> None:
    """Three steps, whose offsets take two words, with a page table and one other buffer each."""
    variant = group_variant(num_steps=3, buffers=("sequence_lengths", "page_table"))
    _, (group,), _ = KernelVariant((variant,)).arguments(range(22))
    assert group.seq_lens == 0
    assert (group.slots_and_width, group.offsets, group.output_strides) == (8, (9, 10), 11)
    assert (group.rows_and_pages, group.page_table, group.status) == (12, (13, 14, 15), 16)
    assert (group.extend_stride_and_limit, group.fields) == (18, (19, 20, 21))


def test_absent_arguments_are_none() -> None:
    _, (without_pages,), _ = KernelVariant((group_variant(buffers=BUFFER_NAMES[:1]),)).arguments(count())
    _, (pages_alone,), _ = KernelVariant((group_variant(buffers=("page_table",)),)).arguments(count())
    assert (without_pages.page_table, len(without_pages.fields)) == (None, 1)
    assert (len(pages_alone.page_table), pages_alone.fields) == (1, None)


@pytest.mark.parametrize("num_groups", [2, 3])
def test_groups_stand_behind_the_word_that_divides_the_programs(num_groups: int) -> None:
    groups = (group_variant(num_steps=2), group_variant("target_verify"), group_variant("draft_extend"))[:num_groups]
    begins, nested, constants = KernelVariant(groups).arguments(words := count())
    assert begins == 0
    assert list(flattened(nested)) == list(range(1, next(words)))
    assert [constant.mode for constant in constants] == [group.mode for group in groups]
    alone = [KernelVariant((group,)).arguments(count())[1] for group in groups]
    assert [len(list(flattened(group))) for group in nested] == [len(list(flattened(group))) for group in alone]


@pytest.mark.parametrize("buffers", BUFFER_SETS, ids=len)
def test_places_of_buffers(buffers: tuple[str, ...]) -> None:
    """A place is the index among a step's addresses in `fields`, which leave out the page table."""
    constants = group_variant(num_steps=2, buffers=buffers).constants()
    others = [name for name in BUFFER_NAMES if name in buffers and name != "page_table"]
    assert constants.num_fields == len(others)
    assert {name: place for name, place in constants.places._asdict().items() if place >= 0} == {
        name: place for place, name in enumerate(others)
    }
    assert set(constants.places._fields) == set(BUFFER_NAMES) - {"page_table"}


@pytest.mark.parametrize("buffers", BUFFER_SETS, ids=len)
@pytest.mark.parametrize("num_groups", [1, 2, 3])
def test_the_signature_follows_the_arguments(num_groups: int, buffers: tuple[str, ...]) -> None:
    """Each word is an int64; the compile-time values are those without a word, at their paths."""
    pytest.importorskip("triton")
    variant = KernelVariant(tuple(group_variant(num_steps=size, buffers=buffers) for size in range(1, num_groups + 1)))
    kernel, signature, values = variant.source()
    arguments = variant.arguments(count())
    assert list(signature) == kernel.arg_names
    words = sum(1 for _ in flattened(arguments[:2]))
    types = list(flattened((signature["begins"], signature["groups"])))
    assert (types.count("i64"), types.count("constexpr")) == (words, len(values) - 1)
    assert signature["VARIANTS"] == "constexpr"
    for path, value in values.items():
        argument: Any = arguments
        kind: Any = tuple(signature.values())
        for index in path:
            argument, kind = argument[index], kind[index]
        assert argument == value
        assert kind == "constexpr"


def test_lanes_make_no_other_variant() -> None:
    """Lanes are an argument of a launch: two launches that differ in lanes alone share their compiled kernel."""
    few, many = (
        GroupVariant("decode", 2, BUFFER_NAMES, 4, 64, 4, Tiling(lanes, block=64, wide=256, num_warps=2))
        for lanes in (64, 1024)
    )
    assert few == many
    assert len({KernelVariant((few,)), KernelVariant((many,))}) == 1
    assert few.grid(8, 64).page_bits != few.grid(8, 1024).page_bits


@pytest.mark.parametrize(("field", "value"), [("block", 128), ("wide", 512), ("num_warps", 4)])
def test_every_other_part_of_a_tiling_makes_another(field: str, value: int) -> None:
    numbers = {"lanes": 64, "block": 64, "wide": 256, "num_warps": 2}
    assert Tiling(**numbers) != Tiling(**{**numbers, field: value})


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 200])
@pytest.mark.parametrize("mode", MODES)
def test_a_grid_has_a_head_for_each_row_and_step_and_a_lane_for_each_page(mode: str, rows: int) -> None:
    """Ratio 4 gives a row four lanes of a head, so that the 64 threads of two warps have 16 rows."""
    variant = group_variant(mode, num_steps=3)
    grid = variant.grid(rows, 128)
    assert grid.heads == (0 if mode == "draft_extend" else 3 * ((rows + 15) // 16))
    assert grid.programs - grid.heads == 2 * rows
    assert 1 << grid.page_bits == 128


def test_draft_extend_has_a_program_for_each_row_even_without_pages() -> None:
    buffers = ("sequence_lengths",)
    assert group_variant("draft_extend", buffers=buffers).grid(5, 64).programs == 5
    assert group_variant("decode", buffers=buffers).grid(5, 64)[:2] == (1, 1)
