"""The command line, called in this process."""

from __future__ import annotations

import contextlib
from io import StringIO

from qsa_group.cli import main

QUICK = ["--device", "cpu", "--backend", "host", "--requests", "12", "--max-batch", "8"]
"""A demo that takes a moment."""


def call(*arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    out, err = StringIO(), StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # From the parser.
            code = int(ended.code or 0)
    return code, out.getvalue(), err.getvalue()
