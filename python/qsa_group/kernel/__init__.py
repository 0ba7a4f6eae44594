"""The Triton kernel: its source, its variants, its arguments and its compilation."""

from .compile import compile_stats, compile_variant
from .tiling import Tiling, choose_tiling, joined_tiling, tilings_of_binaries
from .variant import Grid, GroupVariant, KernelVariant
from collections.abc import Callable
TilingRule = Callable[[str, int, int, int], Tiling]
