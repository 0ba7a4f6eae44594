"""SGLang's QSA backends on the CPU, called as its graph runners call them.

Pools and model runners are bare objects, as SGLang's own tests make them. Without a GPU there are no CUDA graphs, so a
`Graph` stands in for them. Everything else is SGLang's.
"""

from __future__ import annotations

from .batches import Batch, grown, random_batch
from .engine import BUCKETS, Engine
from .graph import Graph
from .modules import MODULE, copy_of_module, methods, patched
from .objects import model_runner, paged_table
from .runners import DraftRunner, Runner
from .values import POISON, assert_same_round, differences, poison, random_rounds

__all__ = [
    "BUCKETS",
    "MODULE",
    "POISON",
    "Batch",
    "DraftRunner",
    "Engine",
    "Graph",
    "Runner",
    "assert_same_round",
    "copy_of_module",
    "differences",
    "grown",
    "methods",
    "model_runner",
    "paged_table",
    "patched",
    "poison",
    "random_batch",
    "random_rounds",
]
