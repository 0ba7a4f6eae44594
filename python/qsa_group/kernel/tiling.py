"""How large a program is, and how many programs divide the pages of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Tiling", "TilingRule", "choose_tiling", "joined_tiling", "tilings_of_binaries"]

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
    """Block sizes and lanes of a group in a launch.

    Tilings that differ in lanes alone are equal, since one compiled kernel serves them: lanes are an argument.

    Attributes:
        lanes: page lanes of a row, a power of two: as many of its first page table entries have a lane each. At least a
            block, unless a row has fewer entries than a block has.
        block: page table entries that a program handles first, a lane each; a power of two.
        wide: page table entries that a program handles at a time after those; a power of two.
        num_warps: warps of a program.
    """

    lanes: int = field(compare=False)
    block: int
    wide: int
    num_warps: int


TilingRule = Callable[[str, int, int, int], Tiling]
"""A function with the arguments of `choose_tiling`."""


def choose_tiling(mode: str, num_steps: int, rows: int, max_pages: int) -> Tiling:
    """The tiling of a launch over one group.

    A program writes the first entries of a row at once and others in a loop. Few rows leave most of a GPU idle: then
    several programs divide a long page table, at little cost where few entries are live. Many rows fill a GPU by
    themselves. `benches/tune.py` measures the choice.

    Args:
        mode: "decode", "target_verify" or "draft_extend".
        num_steps: steps of the group.
        rows: rows of the bucket.
        max_pages: page table entries of a row.
    """
    return _with_lanes(mode, num_steps, rows, max_pages, _program_size(mode, num_steps, rows))


def joined_tiling(mode: str, num_steps: int, rows: int, max_pages: int) -> Tiling:
    """The tiling of a group that shares its launch with others, which must all have the same warps.

    The arguments are those of `choose_tiling`.
    """
    return _with_lanes(mode, num_steps, rows, max_pages, _SMALL)


def tilings_of_binaries(mode: str, num_steps: int) -> set[Tiling]:
    """One tiling for each compiled kernel that `choose_tiling` leads to, whatever the rows and the pages."""
    return {choose_tiling(mode, num_steps, rows, 1) for rows in (2, _FEW_ROWS, _FEW_ROWS + 1)}


def _with_lanes(mode: str, num_steps: int, rows: int, max_pages: int, size: tuple[int, int, int]) -> Tiling:
    """Adds the lanes to block, wide block and warps."""
    block, wide, num_warps = size
    # A launch has about one program for each multiprocessor, and two with the fewest rows, so that a million tokens
    # have enough programs.
    programs = 256 if rows <= _FEW_ROWS // 2 else 128
    # Each of many rows has two programs, so that a row of a few thousand tokens needs no loop. Where a turn of the loop
    # writes for many steps a row has four programs, as long as all of them start at once.
    least = 256 if num_steps > _MANY_STEPS and rows <= _SOME_ROWS else 128
    most = max(1 << (programs * block // max(rows, 1)).bit_length() >> 1, least)
    lanes = min(most, 1 << max(max_pages - 1, 0).bit_length())
    # In draft extend a program has one row, so that a row has a block of lanes at least.
    return Tiling(max(lanes, block) if mode == "draft_extend" else lanes, block, wide, num_warps)


def _program_size(mode: str, num_steps: int, rows: int) -> tuple[int, int, int]:
    """Block, wide block and warps of a program.

    Small programs start soonest, and leave few threads without an entry. One or two steps do less for each entry, so
    that with few rows larger programs read a long table sooner. Wide blocks keep more reads under way, but each step
    lengthens their code.
    """
    if mode == "draft_extend":
        return 128, 512, 4
    if mode == "decode" and num_steps <= 2 and rows <= 2:
        return 128, 1024, 4
    if mode == "decode" and num_steps == 1 and rows <= _FEW_ROWS:
        return 256, 1024, 8
    return (64, 512, 2) if num_steps <= 2 else _SMALL
