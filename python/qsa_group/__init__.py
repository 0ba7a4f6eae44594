"""Grouped refresh of the metadata that replayed CUDA graphs of QSA (Qwen Sparse Attention) read.

`RequestTable` and `StepBuffers` describe the tensors, `ReplayPlanner.plan` validates, groups and compiles once a graph
bucket, `ReplayPlan.run` refreshes all of them with one launch a group.
"""

from ._core import __version__
from .errors import CapacityError, LaunchError, LayoutError, PlanChangedError, QsaGroupError, UnsupportedError
from .planner import Explanation, JoinedPlan, ReplayPlan, ReplayPlanner, ReplayStatus, RequestTable, StepBuffers

__all__ = [
    "CapacityError",
    "Explanation",
    "JoinedPlan",
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
