"""The command line: ``qsa-group demo | replay | doctor | explain | bench``.

Exit codes: 0 all is well; 1 something differs or is broken; 2 the call was wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

import torch

from qsa_group import LaunchError, QsaGroupError, __version__

from . import bench, demo, doctor, explain, replay

__all__ = ["main"]

_NO_OUTPUT = "standard output cannot be written, send it elsewhere"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="qsa-group", description="Grouped refresh of the metadata that replayed QSA graphs read."
    )
    parser.add_argument("--version", action="version", version=f"qsa-group {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (demo, replay, doctor, explain, bench):
        module.add(commands)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # The tensors are small: threads would cost more than they give.
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return _fail(130, "stopped")
    except LaunchError as error:
        return _fail(1, error)
    except QsaGroupError as error:
        return _fail(2, error)
    except OSError as error:  # Of standard output: errors of files are typed.
        # What is still to be written must not fail again at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else _fail(2, f"{_NO_OUTPUT}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        # torch has no type of its own for what the host's allocator refuses.
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return _fail(2, "out of memory; lower --max-batch, --context, --steps or --requests, or describe less")
        raise
    return code


def _fail(code: int, words: object) -> int:
    print(f"qsa-group: {words}", file=sys.stderr)
    return code
