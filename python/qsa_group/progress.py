"""A line of progress on standard error."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]


class Progress:
    """Shows a line: rewritten in place on a terminal, one now and then elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Starts the clock."""
        self._terminal = sys.stderr.isatty()
        self._pause = 0.1 if self._terminal else 10.0
        self._quiet = quiet
        self._next = time.monotonic() + min(self._pause, 1.0)
        self._shown = 0

    @property
    def due(self) -> bool:
        """Whether it is time to show another line."""
        return not self._quiet and time.monotonic() >= self._next

    def show(self, line: str) -> None:
        """Shows ``line``."""
        self._next = time.monotonic() + self._pause
        if self._terminal:
            print("\r" + line.ljust(self._shown), end="", file=sys.stderr, flush=True)
            self._shown = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clears the line of a terminal."""
        if self._shown:
            print("\r" + " " * self._shown, end="\r", file=sys.stderr, flush=True)
            self._shown = 0
