"""What an exception in the plugin means.

- `UnexpectedSGLangError`: an object of SGLang is not as the plugin expects. It is raised by `reading`, which stands
  around reads and calls of SGLang's objects and around nothing else.
- An error of this package that says why a bucket cannot be planned, such as `UnsupportedError`; see `is_refusal`.
- Anything else while planning is a fault of the plugin; see `report_fault`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from qsa_group import CapacityError, LayoutError, PlanChangedError, QsaGroupError, UnsupportedError

from .counts import COUNTS
from .log import say_once

__all__ = ["NOT_AS_EXPECTED", "UnexpectedSGLangError", "is_refusal", "reading", "report_fault"]

NOT_AS_EXPECTED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What Python, torch and SGLang raise when an object lacks a name, a key or a form."""

_CHOSEN_HERE = frozenset({"backend", "buffers", "cache_capacity", "mode", "offset", "padding", "steps", "table"})
"""Arguments of the planner that the plugin chooses. SGLang's objects have no part in them."""


class UnexpectedSGLangError(QsaGroupError):
    """An object of SGLang is not as the plugin expects.

    Attributes:
        what: what was read or called.
        problem: the exception that came of it, in words.
    """

    def __init__(self, what: str, error: Exception) -> None:
        self.what = what
        self.problem = f"{type(error).__name__}: {error}"
        super().__init__(
            f"{self.problem}, while reading {what}; the plugin does not know this SGLang, "
            "QSA_GROUP_SGLANG_MODE=off runs it without the plugin"
        )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Stands around reads and calls of SGLang's objects, and around nothing else.

    Code that runs at every replay catches `NOT_AS_EXPECTED` itself, which takes no call.

    Args:
        what: what is read, for the message.

    Raises:
        UnexpectedSGLangError: in place of an exception that an unexpected object raises.
    """
    try:
        yield
    except QsaGroupError:
        raise
    except NOT_AS_EXPECTED as error:
        raise UnexpectedSGLangError(what, error) from error


def is_refusal(error: Exception) -> bool:
    """Whether an exception says that SGLang's buffers cannot be refreshed here.

    A `LayoutError` about an argument that the plugin chooses is no refusal but a fault of the plugin.
    """
    if isinstance(error, LayoutError):
        return error.field not in _CHOSEN_HERE
    return isinstance(error, (UnexpectedSGLangError, CapacityError, PlanChangedError, UnsupportedError))


def report_fault(where: str, error: Exception) -> None:
    """Counts a fault of the plugin, and logs its traceback once for each place and type.

    Args:
        where: what the plugin was doing.
        error: the fault.
    """
    COUNTS.faults += 1
    kind = type(error).__name__
    say_once(
        f"a fault of qsa_group while {where}: {kind}: {error}; SGLang refreshes this bucket from now on, please report "
        "the traceback",
        logging.ERROR,
        key=f"fault {where} {kind}",
        traceback_of=error,
    )
