"""How a launch is cut up into programs."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Tiling", "choose_tiling", "joined_tiling", "tilings_of_binaries"]

_FEW_ROWS = 8
"""Rows up to which a launch of one decode step has larger programs."""

_SOME_ROWS = 64
"""Rows up to which four small programs each start at once."""

_MANY_STEPS = 4
"""Steps above which up to `_SOME_ROWS` rows have more lanes each, since a turn of the loop takes long."""

_SMALL = (64, 256, 2)
"""Block, wide block and warps of small programs."""


@dataclass(frozen=True)
class Tiling:
    """How a launch is cut up.

    Attributes:
        lanes: first page table entries of a row that have a lane each, a power of two: at least a block, unless that is
            more than there are.
        block: page table entries that a program handles first, a lane each.
        wide: page table entries that a program handles at a time after those.
        num_warps: warps of a program.
    """

    lanes: int = field(compare=False)
    block: int
    wide: int
    num_warps: int


def choose_tiling(mode: str, num_steps: int, rows: int, max_pages: int) -> Tiling:
    """How to cut up a launch over `rows` rows of `num_steps` steps whose page tables have `max_pages` entries.

    A program writes the first entries of a row at once and others in a loop. Few rows leave most of a GPU idle: then
    programs divide long page tables, at little cost where few entries are live. Many rows fill a GPU by themselves.
    `benches/tune.py` measures the choice.
    """
    return _cut(mode, num_steps, rows, max_pages, *_program(mode, num_steps, rows))


def joined_tiling(mode: str, num_steps: int, rows: int, max_pages: int) -> Tiling:
    """As `choose_tiling`, for a group that shares its launch with others: all have the same warps."""
    return _cut(mode, num_steps, rows, max_pages, *_SMALL)


def _cut(mode: str, num_steps: int, rows: int, max_pages: int, block: int, wide: int, num_warps: int) -> Tiling:
    # About one program for each multiprocessor; with the fewest rows two, so that a million tokens have enough. Many
    # rows have two programs each, so that a row of a few thousand tokens needs no loop; four where a turn of the loop
    # writes for many steps, as long as all of them start at once.
    programs = 256 if rows <= _FEW_ROWS // 2 else 128
    least = 256 if num_steps > _MANY_STEPS and rows <= _SOME_ROWS else 128
    most = max(1 << (programs * block // max(rows, 1)).bit_length() >> 1, least)
    lanes = min(most, 1 << max(max_pages - 1, 0).bit_length())
    # In draft extend a program has one row.
    return Tiling(max(lanes, block) if mode == "draft_extend" else lanes, block, wide, num_warps)


def _program(mode: str, num_steps: int, rows: int) -> tuple[int, int, int]:
    """Block, wide block and warps of a program: small ones start soonest, and leave few threads without an entry.

    One or two steps do less for each entry: with few rows, larger programs read a long table sooner. Wide blocks keep
    more reads under way, but each step lengthens their code.
    """
    if mode == "draft_extend":
        return 128, 512, 4
    if mode == "decode" and num_steps <= 2 and rows <= 2:
        return 128, 1024, 4
    if mode == "decode" and num_steps == 1 and rows <= _FEW_ROWS:
        return 256, 1024, 8
    return (64, 512, 2) if num_steps <= 2 else _SMALL


def tilings_of_binaries(mode: str, num_steps: int) -> set[Tiling]:
    """A shape for each binary that `choose_tiling` leads to; which lanes it has does not count for that."""
    return {choose_tiling(mode, num_steps, rows, 1) for rows in (2, _FEW_ROWS, _FEW_ROWS + 1)}
