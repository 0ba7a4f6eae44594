"""Random cases against the oracle."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracle
from helpers.harness import HOST, Backend, Harness, refresh_once
from helpers.oracle import FIELDS, Case
from helpers.strategies import Inputs, cases, inputs

MANY = settings(max_examples=settings().max_examples * 5)
FEW = settings(max_examples=min(settings().max_examples, 12))


def strided(tokens: torch.Tensor, form: int) -> torch.Tensor:
    """The same table in another place of memory: as it is, a slice of columns, transposed, spread."""
    slots, width = tokens.shape
    shapes = {1: (slots, width + 7), 2: (width, slots), 3: (2 * slots, 3 * width)}
    if form == 0:
        return tokens
    wide = torch.full(shapes[form], -77, dtype=tokens.dtype)
    view = {1: wide[:, 3 : 3 + width], 2: wide.t(), 3: wide[1::2, ::3]}[form]
    return view.copy_(tokens)


@MANY
@given(case=cases(), how=inputs(), form=st.integers(0, 3))
def test_rounds_within_the_contract_of_an_engine(case: Case, how: Inputs, form: int) -> None:
    refresh_once(HOST, case, how, table=strided(torch.from_numpy(case.table), form))


@MANY
@given(data=st.data(), how=inputs(), form=st.integers(0, 3))
def test_rounds_with_hostile_numbers(data: st.DataObject, how: Inputs, form: int) -> None:
    case = data.draw(cases(hostile=True, how=how))
    refresh_once(HOST, case, how, table=strided(torch.from_numpy(case.table), form))


@MANY
@given(
    case=cases(),
    fields=st.sets(st.sampled_from(FIELDS), min_size=1),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
)
def test_rounds_with_some_buffers_absent(case: Case, fields: set[str], gaps: tuple[int, int, int]) -> None:
    """The status does not depend on which buffers there are."""
    refresh_once(HOST, case, fields=fields, page_gap=gaps[0], ring_gap=gaps[1], shift=gaps[2])


@given(data=st.data(), how=inputs())
def test_status_is_kept_until_it_is_reset(data: st.DataObject, how: Inputs) -> None:
    """Sticky over calls, and told apart from the values of the last one."""
    first = data.draw(cases(hostile=True, how=how))
    harness = Harness(HOST, first)
    harness.run(first, how)
    assert int(harness.plan.status()) == oracle.refresh(first).status
    harness.run(first.but(num_padding=len(first.seq_lens)), how)
    assert int(harness.plan.status()) == oracle.refresh(first).status
    assert int(harness.plan.status_word) == oracle.refresh(first).status
    harness.plan.reset_status()
    assert int(harness.plan.status()) == 0


@FEW
@given(data=st.data(), how=inputs())
def test_good_rounds_on_every_backend(backend: Backend, data: st.DataObject, how: Inputs) -> None:
    refresh_once(backend, data.draw(cases()), how)


@FEW
@given(data=st.data(), how=inputs())
def test_hostile_rounds_on_every_backend(backend: Backend, data: st.DataObject, how: Inputs) -> None:
    refresh_once(backend, data.draw(cases(hostile=True, how=how)), how)


@given(case=cases(mode="decode"), shift=st.integers(0, 5))
def test_an_offset_is_the_same_as_a_longer_request(case: Case, shift: int) -> None:
    """Offsets and lengths only ever meet in their sum."""
    served = case.but(seq_lens=[min(n, max(case.width - shift - max(case.offsets), 0)) for n in case.seq_lens])
    moved = served.but(seq_lens=[n + shift for n in served.seq_lens])
    earlier = served.but(offsets=[offset + shift for offset in served.offsets])
    first, second = Harness(HOST, moved), Harness(HOST, earlier)
    first.refresh()
    second.refresh()
    difference = first.arena.difference(second.arena)
    assert difference is None, difference
