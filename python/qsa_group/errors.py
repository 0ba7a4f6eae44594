"""The exceptions of this package, each with what is wrong, both values and what to do."""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "LaunchError",
    "LayoutError",
    "PlanChangedError",
    "QsaGroupError",
    "UnsupportedError",
]


class QsaGroupError(Exception):
    """Base of every error that this package raises on its own account."""


class LayoutError(QsaGroupError, ValueError):
    """A tensor or a number does not have the form it must have. Nothing was written.

    Attributes:
        step: index of the step in the list that was planned, or None where no step is concerned.
        field: name of the buffer or argument.
    """

    def __init__(self, message: str, *, step: int | None = None, field: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.field = field


class CapacityError(QsaGroupError, ValueError):
    """More is asked for than was planned or than there is room for. Nothing was written.

    Attributes:
        name: what is too large: "rows", "batch", or "batch * draft_token_num" (rows).
        needed: how much is asked for.
        limit: how much there is.
    """

    def __init__(self, message: str, *, name: str = "", needed: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.name = name
        self.needed = needed
        self.limit = limit


class PlanChangedError(QsaGroupError, ValueError):
    """Something that was fixed when the plan or the request table was made is different now. Nothing was written.

    Attributes:
        field: what differs.
        planned: its value at plan time.
        given: its value now.
    """

    def __init__(self, message: str, *, field: str = "", planned: object = None, given: object = None) -> None:
        super().__init__(message)
        self.field = field
        self.planned = planned
        self.given = given


class UnsupportedError(QsaGroupError, NotImplementedError):
    """This device, Triton or driver cannot do what is asked. Raised when planning, never by ``run``."""


class LaunchError(QsaGroupError, RuntimeError):
    """A launch was refused. That launch did not run. Earlier launches of the same run did.

    Attributes:
        name: the driver's name for the error, such as ``CUDA_ERROR_INVALID_CONTEXT``.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name
