"""The Triton kernel of a joined launch: the programs of several groups, each as in a launch of its own."""

from __future__ import annotations

import triton
import triton.language as tl

from .kernel import _high, _low, refresh_group

__all__ = ["joined_kernel"]


@triton.jit
def _refresh_one(program, words, CONSTANTS: tl.constexpr, GROUP: tl.constexpr):
    """A program of one group."""
    refresh_group(
        program,
        words,
        CONSTANTS[GROUP][0],
        CONSTANTS[GROUP][1],
        CONSTANTS[GROUP][2],
        CONSTANTS[GROUP][3],
        CONSTANTS[GROUP][4],
        CONSTANTS[GROUP][5],
        CONSTANTS[GROUP][6],
        CONSTANTS[GROUP][7],
        CONSTANTS[GROUP][8],
        CONSTANTS[GROUP][9],
        CONSTANTS[GROUP][10],
        CONSTANTS[GROUP][11],
        CONSTANTS[GROUP][12],
        CONSTANTS[GROUP][13],
        CONSTANTS[GROUP][14],
        CONSTANTS[GROUP][15],
        CONSTANTS[GROUP][16],
        CONSTANTS[GROUP][17],
        CONSTANTS[GROUP][18],
    )


@triton.jit
def joined_kernel(begins, groups, CONSTANTS: tl.constexpr):
    """Refreshes the buffers of two or three groups.

    Args:
        begins: two int32, the lower half first: the programs at which the second and the third group begin.
        groups: for each group a tuple of the arguments of `refresh_kernel`, in its order.
        CONSTANTS: for each group a tuple of the compile-time parameters of `refresh_kernel`, in its order.
    """
    program = tl.program_id(0)
    second = _low(begins)
    third = _high(begins)
    if program < second:
        _refresh_one(program, groups[0], CONSTANTS, 0)
    elif program < third:
        _refresh_one(program - second, groups[1], CONSTANTS, 1)
    elif len(CONSTANTS) > 2:
        _refresh_one(program - third, groups[2], CONSTANTS, 2)
