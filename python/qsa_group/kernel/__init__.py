"""The Triton kernel: its variants, tilings, arguments and compilation.

Triton is imported when a kernel is first asked for, since the import takes long.
"""

from .arguments import ARGUMENT_NAMES, BUFFER_NAMES, GroupArguments, argument_lengths, nest_arguments
from .compile import compile_stats, compile_variant, refusal
from .tiling import Tiling, choose_tiling, joined_tiling, tilings_of_binaries
from .variant import MODES, Constants, Grid, GroupVariant, KernelVariant, Places

__all__ = [
    "ARGUMENT_NAMES",
    "BUFFER_NAMES",
    "MODES",
    "Constants",
    "Grid",
    "GroupArguments",
    "GroupVariant",
    "KernelVariant",
    "Places",
    "Tiling",
    "argument_lengths",
    "choose_tiling",
    "compile_stats",
    "compile_variant",
    "joined_tiling",
    "nest_arguments",
    "refusal",
    "tilings_of_binaries",
]
