"""The Triton kernel: its variants, tilings, arguments and compilation.

Triton is imported when a kernel is first asked for, since the import takes long.
"""

from .arguments import ARGUMENT_NAMES, GroupArguments, argument_lengths, nest_arguments
from .compile import compile_stats, compile_variant
from .tiling import Tiling, TilingRule, choose_tiling, joined_tiling, tilings_of_binaries
from .variant import Constants, Grid, GroupVariant, KernelVariant, Places

__all__ = [
    "ARGUMENT_NAMES",
    "Constants",
    "Grid",
    "GroupArguments",
    "GroupVariant",
    "KernelVariant",
    "Places",
    "Tiling",
    "TilingRule",
    "argument_lengths",
    "choose_tiling",
    "compile_stats",
    "compile_variant",
    "joined_tiling",
    "nest_arguments",
    "tilings_of_binaries",
]
