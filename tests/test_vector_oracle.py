"""The operator oracle of the GPU tests, against the plain one."""

from __future__ import annotations

import torch
from hypothesis import given, settings

import vector_oracle
from arena import Arena
from helpers import oracle
from helpers.cases import CASES, round_of
from helpers.strategies import rounds


def assert_oracles_agree(round_: oracle.Round) -> None:
    """Both oracles, each written into an arena."""
    plain = oracle.refresh(round_)
    shape = vector_oracle.Shape(
        torch.from_numpy(round_.table),
        round_.ratio,
        round_.page,
        round_.rows,
        round_.page_columns,
        round_.mode,
        round_.offsets,
        round_.draft_token_num or 1,
        round_.padding,
    )
    extend = None if round_.extend_lens is None else torch.tensor(round_.extend_lens, dtype=torch.int64)
    live = vector_oracle.Live(
        torch.tensor(round_.seq_lens, dtype=torch.int64),
        torch.tensor(round_.slots, dtype=torch.int64),
        round_.num_padding,
        extend,
    )
    wanted = vector_oracle.refresh(shape, live)
    arena = Arena(round_.steps, round_.rows, round_.ratio, round_.page_columns)
    for name, values in wanted.values.items():
        region = arena.region(name)
        region.copy_(torch.where(wanted.live, values, region) if name == "page_table" else values)
    arena.assert_holds(plain)
    assert int(wanted.status) == plain.status


def test_operator_oracle_gives_the_values_of_the_handed_cases() -> None:
    for case in CASES:
        assert_oracles_agree(round_of(case))


@settings(max_examples=200)
@given(round_=rounds())
def test_operator_oracle_gives_the_values_of_random_rounds(round_: oracle.Round) -> None:
    if len(round_.seq_lens) > 0:
        assert_oracles_agree(round_)
