"""The plugin's logger, and lines that are logged once a process."""

from __future__ import annotations

import logging

__all__ = ["forget_said", "logger", "say_once"]

logger = logging.getLogger("qsa_group.sglang")

_said: set[str] = set()


def say_once(
    text: str, level: int = logging.WARNING, *, key: str | None = None, traceback_of: Exception | None = None
) -> None:
    """Logs a line, unless a line of the same key was logged before.

    Args:
        text: the line.
        level: as `logging` counts.
        key: what makes two lines the same, for lines with numbers that vary; the text by default.
        traceback_of: an exception whose traceback follows the line.
    """
    if (key or text) not in _said:
        _said.add(key or text)
        logger.log(level, "%s", text, exc_info=traceback_of)


def forget_said() -> None:
    """Lets every line be logged again. For tests."""
    _said.clear()
