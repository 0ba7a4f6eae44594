"""What commands print and write."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from .options import UsageError

__all__ = ["add_json", "check_files", "say", "write_json"]

_FILES = {"file": "FILE", "workload": "--workload", "record": "--record", "json": "--json", "plot": "--plot"}
_READ = ("file", "workload")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json."""
    words = "write the results as JSON; - is standard output, and the report then goes to standard error"
    parser.add_argument("--json", metavar="FILE", help=words)


def check_files(options: argparse.Namespace) -> None:
    """Finds out before a long run whether the outputs can be written. Each is opened, and made if it is not there.

    Raises:
        UsageError: an output cannot be written, or is another file of the call.
    """
    paths = {name: path for name in _FILES if (path := getattr(options, name, None)) is not None}
    if paths.get("json") == "-":
        del paths["json"]
    taken: dict[str, str] = {}
    for name, path in paths.items():
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name:
            raise UsageError(f"{_FILES[name]} has value {path}, which {_FILES[other]} names too; name another file")
    for name, path in paths.items():
        if name not in _READ:
            try:
                open(path, "a").close()
            except OSError as error:
                raise _cannot_write(_FILES[name], path, error) from error


def say(text: object, options: argparse.Namespace) -> None:
    """Prints to standard output, or to standard error where --json goes to standard output."""
    print(text, file=sys.stderr if options.json == "-" else sys.stdout, flush=True)


def write_json(value: dict[str, Any], options: argparse.Namespace) -> None:
    """Writes the results to where --json says, if it is given.

    Raises:
        UsageError: the file cannot be written.
    """
    if options.json is None:
        return
    text = json.dumps(value, indent=2)
    if options.json == "-":
        print(text, flush=True)
        return
    try:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise _cannot_write("--json", options.json, error) from error


def _cannot_write(option: str, path: str, error: OSError) -> UsageError:
    return UsageError(f"cannot write {option} {path!r}: {error.strerror}; name a file that can be written")
