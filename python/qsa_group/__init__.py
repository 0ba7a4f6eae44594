"""Grouped refresh of the metadata that replayed CUDA graphs of QSA (Qwen Sparse Attention) read.

`RequestTable` and `StepBuffers` describe the tensors. `ReplayPlanner.plan` validates, groups and compiles once a graph
bucket. `ReplayPlan.run` refreshes all buffers of the plan with one launch a group.
"""

from ._core import __version__
from .buffers import FIELDS, SHARED_INDEX_FIELDS, RequestTable, StepBuffers
from .errors import CapacityError, LaunchError, LayoutError, PlanChangedError, QsaGroupError, UnsupportedError
from .plan import Explanation, ExplanationData, ReplayPlan
from .planner import ReplayPlanner
from .status import ReplayStatus

__all__ = [
    "FIELDS",
    "SHARED_INDEX_FIELDS",
    "CapacityError",
    "Explanation",
    "ExplanationData",
    "LaunchError",
    "LayoutError",
    "PlanChangedError",
    "QsaGroupError",
    "ReplayPlan",
    "ReplayPlanner",
    "ReplayStatus",
    "RequestTable",
    "StepBuffers",
    "UnsupportedError",
    "__version__",
]
