"""The machinery of the GPU rounds, on the CPU: it passes what is right and catches what is wrong."""

from __future__ import annotations

import pytest

from helpers import many_rounds, sglang_kernels
from helpers.arena import Arena
from helpers.harness import HOST, Backend
from helpers.machine import INTERPRETED
from helpers.many_rounds import COMBOS, Rounds, against_reference, against_sglang, compare_all

SMALL = [combo for combos in COMBOS.values() for combo in combos if combo.rows <= 64 and combo.pages <= 40]


@pytest.mark.parametrize("padding", ["count", "slot"])
@pytest.mark.parametrize("combo", SMALL, ids=str)
def test_rounds_of_the_host_against_the_reference(combo: many_rounds.Combo, padding: str) -> None:
    against_reference(HOST, combo, 70, 1, padding)


@pytest.mark.parametrize("place", ["page_table", "write_locs", "outside"])
def test_one_wrong_element_is_found(place: str) -> None:
    rounds = Rounds(COMBOS["decode"][1], 70, "cpu", 1)
    arena = rounds.arena(page_gap=2)
    plan = rounds.plan(HOST, arena)

    def one(number: int) -> tuple[Arena, Arena]:
        arena.poison()
        plan.run(**rounds.arguments(number))
        wanted = arena.fresh()
        wanted.memory.copy_(arena.memory)
        if number == 66:
            target = arena.blocks["page_table"][1, -1:] if place == "outside" else arena.region(place)[1, 2:3]
            target.view(-1)[0] += 1
        return arena, wanted

    words = "207 elements from the start of page_table, outside of its rows" if place == "outside" else place
    with pytest.raises(AssertionError, match=f"round 66: step 1: {words}"):
        compare_all(rounds, one, plan)


@pytest.mark.sglang
@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("mode", "fused"), [("decode", True), ("decode", False), ("target_verify", False), ("draft_extend", False)]
)
def test_kernels_of_sglang_in_the_interpreter_agree_with_the_host(mode: str, fused: bool) -> None:
    """Also says that the contract is SGLang's, with no GPU."""
    module = sglang_kernels.load()
    if module is None:
        pytest.skip("no SGLang here: install it, or set QSA_GROUP_SGLANG_PATH to its unpacked wheel")
    if not INTERPRETED:
        pytest.skip("TRITON_INTERPRET=1 is not set")
    for combo in COMBOS[mode]:
        if combo.rows <= 40 and combo.pages <= 40 and combo.ring is None:
            against_sglang(module, Backend("host", "cpu"), combo, 3, 4, fused)
