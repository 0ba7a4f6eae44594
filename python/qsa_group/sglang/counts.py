"""What the plugin did in this process, and the lines that it says once."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

__all__ = ["COUNTS", "Counts", "forget_said", "logger", "say_once"]

logger = logging.getLogger("qsa_group.sglang")

_said: set[str] = set()


@dataclass(slots=True)
class Counts:
    """Refreshes by the way they took, and what was captured.

    Attributes:
        recorded: replays whose refresh is a node of the graph.
        launched: replays with a launch of this package before them.
        sglang: replays that SGLang refreshed itself, of backends that the plugin looks after.
        sglang_steps: draft steps that SGLang refreshed alone, beside a group.
        captures: buckets planned.
        declined: buckets left to SGLang at capture.
        nodes: refreshes recorded in graphs.
        verified: refreshes compared with SGLang's own.
    """

    recorded: int = 0
    launched: int = 0
    sglang: int = 0
    sglang_steps: int = 0
    captures: int = 0
    declined: int = 0
    nodes: int = 0
    verified: int = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return asdict(self)

    def reset(self) -> None:
        """Sets all counts to 0."""
        self.__init__()  # type: ignore[misc]


COUNTS = Counts()


def say_once(text: str, level: int = logging.WARNING, *, key: str | None = None) -> None:
    """Logs a line once a process; lines of one key are one line, whatever numbers they carry."""
    if (key or text) not in _said:
        _said.add(key or text)
        logger.log(level, "%s", text)


def forget_said() -> None:
    """Lets every line be said again. For tests."""
    _said.clear()
