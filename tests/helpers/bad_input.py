"""What the tests of bad arguments share: a small good round, and the form that every error must have."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from helpers.arena import Arena
from helpers.cases import random_table
from helpers.harness import HOST, Harness, live_inputs, planner_of, step_buffers
from helpers.oracle import FIELDS, Case
from qsa_group import LayoutError, QsaGroupError, RequestTable

E = TypeVar("E", bound=QsaGroupError)

ROWS, RATIO, PAGE, WIDTH = 4, 4, 8, 32
VECTORS = [name for name in FIELDS if name not in ("ring_group_locs", "page_table")]
MATRICES = ["ring_group_locs", "page_table"]


def case_in(mode: str = "decode", rows: int = ROWS) -> Case:
    """A small good round of a mode."""
    batch = rows // 2 if mode == "target_verify" else rows
    return Case(
        table=random_table(np.random.default_rng(7), 6, WIDTH, PAGE),
        seq_lens=[5, 9, 13, 17][:batch],
        slots=[1, 2, 3, 4][:batch],
        rows=rows,
        ratio=RATIO,
        page=PAGE,
        mode=mode,
        offsets=[1, 2] if mode == "decode" else [1],
        draft_token_num=2 if mode == "target_verify" else None,
        extend_lens=[1, 0, 2, 1][:batch] if mode == "draft_extend" else None,
    )


def assert_says(error: BaseException, *words: object) -> None:
    """The message has each of these words, and ends in a remedy."""
    text = str(error)
    for word in words:
        assert str(word) in text, f"{word!r} is missing in {text!r}"
    _, _, remedy = text.rpartition("; ")
    assert remedy != text and len(remedy.split()) >= 2, f"no remedy in {text!r}"


def refuse_run(harness: Harness, error: type[E], words: tuple[object, ...], **changes: Any) -> E:
    """Runs with some live inputs changed; nothing may be written and no state may change."""
    before = harness.planner.stats()
    with pytest.raises(error) as caught:
        harness.plan.run(**{**live_inputs(harness.case, harness.backend.device), **changes})
    assert_says(caught.value, *words)
    harness.arena.assert_untouched()
    assert int(harness.plan.status()) == 0
    after = harness.planner.stats()
    assert (after["runs"], after["launches"]) == (before["runs"], before["launches"])
    return caught.value


def refuse_table(tensor: Any, field: str, *words: object, ratio: Any = RATIO, page: Any = PAGE) -> None:
    """Describes a table that cannot be one."""
    with pytest.raises(LayoutError) as caught:
        RequestTable(tensor, compress_ratio=ratio, page_size=page)
    assert caught.value.field == field
    assert_says(caught.value, field, *words)


def assert_names_argument(error: BaseException, name: str) -> None:
    """A plain TypeError is fine for a scalar of a wrong type, as long as it says which argument is meant."""
    text = " ".join([str(error), *getattr(error, "__notes__", [])])
    assert name in text, f"{name!r} is missing in {text!r}"


def misaligned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector that starts one byte off."""
    return torch.frombuffer(bytearray(8 * count + 16), dtype=dtype, offset=1, count=count)


def plan_with(**arguments: Any) -> None:
    """Plans one good step with these arguments."""
    arena = Arena(1, ROWS, RATIO, WIDTH // PAGE)
    try:
        planner_of(case_in(), HOST).plan(step_buffers(arena, [1]), **arguments)
    finally:
        arena.assert_untouched()
