"""What can be told of a call of the command line before any work: files and options that do not go together."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from itertools import combinations

from .errors import QsaGroupError

__all__ = ["STANDARD_OUTPUT", "UsageError", "check_files", "check_most", "check_together", "option_of"]

STANDARD_OUTPUT = "-"
_STREAMABLE = "--json"


class UsageError(QsaGroupError, ValueError):
    """The command line asks for something that cannot be."""


def option_of(name: str) -> str:
    """How the command line calls what its parser stores under a name."""
    return "FILE" if name == "file" else f"--{name.replace('_', '-')}"


def check_files(inputs: Mapping[str, str | None], outputs: Mapping[str, str | None]) -> None:
    """Finds out before a long run whether its outputs can be written without overwriting what it reads or writes.

    Args:
        inputs: path by option, of the files that are read; None where none is given.
        outputs: path by option, of the files that are written.

    Raises:
        UsageError: naming option and path.
    """
    read = {option: path for option, path in inputs.items() if path is not None}
    written = {option: path for option, path in outputs.items() if path is not None}
    for option, path in read.items():
        if _is_endless(path):
            raise UsageError(f"{option} has value {path}, must be a file or a pipe, not a device; name a file")
    for option, path in written.items():
        if path != STANDARD_OUTPUT:
            _check_writable(option, path)
        elif option == _STREAMABLE and sys.stdout is None:
            raise UsageError(f"{option} has value {path}, but standard output is closed; name a file")
        elif option != _STREAMABLE:
            raise UsageError(
                f"{option} has value {path}, must be a file; only {_STREAMABLE} writes to standard output: name a file"
            )
    files = {option: path for option, path in written.items() if path != STANDARD_OUTPUT}
    for option, path in files.items():
        for other, taken in read.items():
            if _same(path, taken):
                raise UsageError(
                    f"{option} has value {path}, must be another file than {other} {taken}, which is read and would be "
                    "overwritten; name another file"
                )
        stream = _stream_to(path)
        if stream is not None:
            raise UsageError(
                f"{option} has value {path}, must be another file than the one that {stream} goes to; name "
                f"another file{', or pass --json -' * (option == _STREAMABLE)}"
            )
    for (first, path), (second, other) in combinations(files.items(), 2):
        if _same(path, other):
            raise UsageError(
                f"{second} has value {other}, must be another file than {first} {path}, which is written too; name "
                "another file"
            )


def check_together(ruling: str, others: Mapping[str, object]) -> None:
    """Refuses options that another one leaves without effect.

    Args:
        ruling: the option that was given.
        others: value by option, of those that have no effect beside it; None or False where one is not given.

    Raises:
        UsageError: naming both options.
    """
    for option, value in others.items():
        if value is not None and value is not False:
            words = option if value is True else f"{option} {value}"
            raise UsageError(f"{words} has no effect with {ruling}; leave out one of the two")


def check_most(option: str, value: int, most: int) -> None:
    """Refuses a number that is too large.

    Raises:
        UsageError: naming option, value and bound.
    """
    if value > most:
        raise UsageError(f"{option} has value {value}, must be at most {most}; lower it")


def _check_writable(option: str, path: str) -> None:
    """Opens nothing: a file that is there must keep what it holds until there is something to write."""
    place = f"{option} has value {path or repr(path)}"
    remedy = "name a file in a folder that you can write to"
    target = path
    try:
        mode = os.stat(path).st_mode if path else stat.S_IFDIR
    except FileNotFoundError:
        target = os.path.dirname(os.path.realpath(path))  # A link may lead to a file that is yet to be made.
        if not os.path.isdir(target):
            raise UsageError(f"{place}, must be in a folder that exists, which {target} does not; make it") from None
        mode = stat.S_IFDIR if path.endswith(os.sep) else 0
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{place}, must be a file that can be written: {reason}; {remedy}") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{place}, must be a file, not a folder; name a file in it")
    if not os.access(target, os.W_OK if mode else os.W_OK | os.X_OK):
        raise UsageError(f"{place}, must be writable, which {target} is not; {remedy}")


def _same(one: str, other: str) -> bool:
    """Whether both names lead to one file. Devices keep nothing that could be overwritten, so they never do."""
    try:
        return os.path.samefile(one, other) and not _is_device(os.stat(one))
    except (OSError, ValueError):  # One is not there (yet).
        return os.path.realpath(one) == os.path.realpath(other)


def _stream_to(path: str) -> str | None:
    """The standard stream that goes to a file, if one does."""
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        try:
            found = os.fstat(stream.fileno())
            if not _is_device(found) and os.path.samestat(found, os.stat(path)):
                return name
        except (AttributeError, OSError, ValueError):  # No such file, or a stream that is closed or no file.
            continue
    return None


def _is_endless(path: str) -> bool:
    """Whether it is a device other than a terminal, which has no end (/dev/zero) or holds nothing."""
    try:
        if not _is_device(os.stat(path)):
            return False
        with open(path, "rb", buffering=0) as file:
            return not file.isatty()
    except (OSError, ValueError):  # Who reads it says why not.
        return False


def _is_device(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode)
