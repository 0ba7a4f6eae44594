"""Speculative rounds as a server hands them to the refreshes, and files of recorded rounds.

A file is JSON lines, compressed where its name ends in ``.gz``: a line with the settings, then one line a round.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from qsa_group import QsaGroupError

from .trace import TraceError

__all__ = ["Round", "RoundSettings", "SettingsError", "read_rounds", "record"]

_HEADER = {"format": "qsa_group.rounds", "version": 1}
_LISTS = ("seq_lens", "slots", "extend_lens", "pages")
_MOST_ENTRIES = 1 << 31


class SettingsError(QsaGroupError, ValueError):
    """Sizes that cannot be served together; the message names them."""


@dataclass(frozen=True)
class RoundSettings:
    """What stays the same over all rounds.

    Attributes:
        steps: draft steps that are refreshed together. The pass before these steps proposes a token too, so
            ``steps + 1`` tokens are drafted, and verify has ``steps + 2`` rows a request.
        max_batch: the largest bucket, in requests.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page; a multiple of the ratio.
        context: most tokens of a request.
        slots: rows of the request table, the reserved slot 0 included.
        index_sharing: whether the draft steps read only lengths, request slots and positions.
    """

    steps: int = 2
    max_batch: int = 64
    compress_ratio: int = 4
    page_size: int = 64
    context: int = 16384
    slots: int = 73
    index_sharing: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes that cannot be served, or that take absurd memory."""
        for name in ("steps", "max_batch", "compress_ratio", "page_size", "context", "slots"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SettingsError(f"{name} has value {value!r}, must be a whole number from 1; pass such a number")
        if self.slots <= self.max_batch:
            raise SettingsError(
                f"slots has value {self.slots}, must be above max_batch, {self.max_batch}, since slot 0 is reserved; "
                "raise slots"
            )
        if self.context <= self.draft_tokens:
            raise SettingsError(
                f"context has value {self.context}, must be above the {self.draft_tokens} draft tokens of a request; "
                "raise context or lower steps"
            )
        if max(self.slots * self.table_width, self.buffer_entries) >= _MOST_ENTRIES:
            raise SettingsError(
                f"request table and buffers have {self.slots * self.table_width} and {self.buffer_entries} entries, "
                f"must have fewer than {_MOST_ENTRIES} each, with max_batch {self.max_batch}, steps {self.steps}, "
                f"context {self.context}, page_size {self.page_size} and compress_ratio {self.compress_ratio}; lower "
                "max_batch, steps or context"
            )

    @property
    def draft_tokens(self) -> int:
        """Rows of a request in verify: the drafted tokens and the one before them."""
        return self.steps + 2

    @property
    def max_pages(self) -> int:
        """Pages of a full context."""
        return -(-self.context // self.page_size)

    @property
    def table_width(self) -> int:
        """Columns of the request table, whole pages."""
        return self.max_pages * self.page_size

    @property
    def buffer_entries(self) -> int:
        """Entries of the page tables and ring groups of all passes: draft steps, verify and extend."""
        rows = self.max_batch * (2 * self.draft_tokens + (0 if self.index_sharing else self.steps))
        return rows * (self.max_pages + self.compress_ratio)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that graphs are captured for: 1, 2, 4, 8, 12, then every eighth up to ``max_batch``."""
        sizes = [1, 2, 4, 8, 12, *range(16, self.max_batch, 8)]
        return (*(size for size in sizes if size < self.max_batch), self.max_batch)


@dataclass(frozen=True, slots=True)
class Round:
    """The live batch of one speculative round.

    Attributes:
        time: seconds since the first arrival.
        seq_lens: length of each request before the draft.
        slots: row of each request in the request table.
        extend_lens: tokens of each request that verify accepted and draft extend takes over; 0 for a request that is
            finished by them.
        pages: entries to write into the table before the round, as (slot, page number in the request, page id).
    """

    time: float
    seq_lens: list[int]
    slots: list[int]
    extend_lens: list[int]
    pages: list[tuple[int, int, int]]


def record(path: str | Path, settings: RoundSettings, rounds: Iterable[Round]) -> Generator[Round]:
    """Writes rounds to a file as they pass.

    Yields:
        The rounds. Close the generator where not all of them are taken: only then is the file complete.

    Raises:
        TraceError: the file cannot be written.
    """
    try:
        with _open(path, "wt") as file:
            file.write(_line({**_HEADER, **asdict(settings)}))
            for round_ in rounds:
                lists = {name: getattr(round_, name) for name in _LISTS}
                file.write(_line({"time": round(round_.time, 6), **lists}))
                yield round_
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}; name another file") from error


def read_rounds(path: str | Path) -> tuple[RoundSettings, Iterator[Round]]:
    """Opens a file of recorded rounds.

    Returns:
        The settings, and the rounds as they are read.

    Raises:
        TraceError: the file is missing, or its first line is not that of such a file. The rounds raise it for a line
            that does not hold.
    """
    lines = _lines(path)
    place, header = next(lines, (f"{path}, line 1", {}))
    if any(header.get(key) != value for key, value in _HEADER.items()):
        raise TraceError(f"{place}: not a file of recorded rounds, version 1; pass one that 'demo --record' wrote")
    try:
        settings = RoundSettings(**{field.name: header[field.name] for field in fields(RoundSettings)})
    except KeyError as error:
        raise TraceError(f"{place}: the setting {error.args[0]} is missing; record the rounds again") from None
    except SettingsError as error:
        raise TraceError(f"{place}: {error}") from None
    return settings, (_round(place, value, settings) for place, value in lines)


def _open(path: str | Path, mode: str) -> IO[Any]:
    opener: Any = gzip.open if str(path).endswith(".gz") else open
    file: IO[Any] = opener(path, mode)
    return file


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of a file as JSON objects, each with its place in words."""
    place = str(path)
    try:
        with _open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                place = f"{path}, line {number}"
                value = json.loads(line.rstrip())
                if not isinstance(value, dict):
                    raise ValueError("not a JSON object")
                yield place, value
                place = f"{path}, line {number + 1}"
    except json.JSONDecodeError as error:  # Its own words count lines too, within this one.
        raise TraceError(f"{place}: cannot be read: {error.msg}, at character {error.pos + 1}") from error
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise TraceError(f"{place}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _round(place: str, value: dict[str, Any], settings: RoundSettings) -> Round:
    """A line as a round. Every number must fit the table and the buffers."""
    try:
        seq_lens, slots, extend_lens, pages = (value[name] for name in _LISTS)
        if not isinstance(value["time"], int | float) or not math.isfinite(value["time"]):
            raise ValueError(f"time has value {value['time']!r}, must be a finite number")
        _check("seq_lens", seq_lens, 1, settings.context - settings.draft_tokens)
        _check("slots", slots, 1, settings.slots - 1)
        _check("extend_lens", extend_lens, 0, settings.draft_tokens)
        if any(len(entry) != 3 for entry in pages):
            raise ValueError("pages must hold entries of slot, page number and page id")
        _check("pages", [slot for slot, _, _ in pages], 1, settings.slots - 1)
        _check("pages", [number for _, number, _ in pages], 0, settings.max_pages - 1)
        _check("pages", [page for _, _, page in pages], 1, (1 << 31) // settings.page_size - 1)
    except KeyError as error:
        raise TraceError(f"{place}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{place}: {error}") from None
    counts = [len(seq_lens), len(slots), len(extend_lens)]
    if not 1 <= counts[0] <= settings.max_batch or len(set(counts)) > 1:
        raise TraceError(
            f"{place}: seq_lens, slots and extend_lens have {counts} entries, must have as many each, from 1 to "
            f"{settings.max_batch}"
        )
    entries = [(slot, number, page) for slot, number, page in pages]
    return Round(float(value["time"]), seq_lens, slots, extend_lens, entries)


def _check(name: str, values: Any, least: int, most: int) -> None:
    if not isinstance(values, list):
        raise ValueError(f"{name} has value {values!r}, must be a list")
    for value in values:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} has value {value!r}, must be whole numbers from {least} to {most}")
