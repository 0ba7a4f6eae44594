"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
from typing import TypeAlias

import torch

from qsa_group import QsaGroupError
from qsa_group.demo.rounds import RoundSettings

__all__ = ["Commands", "UsageError", "add_layout", "add_place", "count", "device_of", "settings_of"]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_MOST = 1 << 24
_SIZES = {
    "steps": "draft steps refreshed together; N + 1 tokens are drafted",
    "max_batch": "largest bucket, in requests",
    "compress_ratio": "tokens of a compressed group",
    "page_size": "tokens of a page, a multiple of the ratio",
    "context": "most tokens of a request",
}


class UsageError(QsaGroupError, ValueError):
    """The command line asks for something that cannot be."""


def count(text: str) -> int:
    """A number of things. Even the largest that is taken makes lists that fit in memory."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST}")
    return int(text)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where a command runs."""
    group = parser.add_argument_group("where")
    backends = ("auto", "direct", "triton", "host")
    group.add_argument("--backend", choices=backends, default="auto", help="how to refresh (%(default)s)")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (cuda if there is one, else cpu)")


def device_of(options: argparse.Namespace) -> torch.device:
    """The device of --device.

    Raises:
        UsageError: there is no such device here.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = options.device or ("cuda" if gpus else "cpu")
    known = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    full = "cuda:0" if name == "cuda" else name
    if full not in known:
        raise UsageError(f"--device has value {name}, must be one of {', '.join(known)}; see 'qsa-group doctor'")
    return torch.device(full)


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Adds the sizes."""
    plain = RoundSettings()
    add = parser.add_argument_group("layout").add_argument
    for name, words in _SIZES.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=count, default=getattr(plain, name), metavar="N", help=f"{words} (%(default)s)")
    add("--index-sharing", action="store_true", help="draft steps read only lengths, request slots and positions")


def settings_of(options: argparse.Namespace) -> RoundSettings:
    """The sizes.

    Raises:
        SettingsError: they cannot be served together.
    """
    sizes = {name: getattr(options, name) for name in _SIZES}
    slots = options.max_batch + 1 + max(1, options.max_batch // 8)
    return RoundSettings(**sizes, slots=slots, index_sharing=options.index_sharing)
