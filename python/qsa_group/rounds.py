"""Recorded rounds: what a serving loop hands to the refreshes of one speculative round, and files of them.

A file is JSON lines, compressed when its name ends in ``.gz``: first a line with the settings, then one line a round.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .errors import QsaGroupError, cannot_write
from .trace import TraceError

__all__ = ["Round", "RoundSettings", "RoundWriter", "SettingsError", "graph_buckets", "read_rounds"]

_FORMAT = "qsa_group.rounds"
_VERSION = 1
SETTINGS_LIMITS = {
    "steps": 32,
    "max_batch": 4096,
    "compress_ratio": 4096,
    "page_size": 1 << 20,
    "context": 1 << 24,
    "slots": 1 << 16,
}
_MOST_TABLE_ENTRIES = 1 << 31
_MOST_BUFFER_ENTRIES = 1 << 31
_MOST_PAGES = 1 << 25
_MOST_SECONDS = 1 << 53
_LONGEST_LINE = 1 << 28


class SettingsError(QsaGroupError, ValueError):
    """Sizes that cannot be served together; the message names them."""


@dataclass(frozen=True)
class RoundSettings:
    """What stays the same over all rounds.

    Attributes:
        steps: draft steps that are refreshed together. The pass before them proposes a token too, so ``steps + 1``
            tokens are drafted, and verify reads ``steps + 2`` rows a request.
        max_batch: the largest bucket, in requests.
        compress_ratio: tokens of a compressed group.
        page_size: tokens of a page; a multiple of the ratio.
        context: most tokens a request may have.
        slots: rows of the request table, the reserved slot 0 included.
        index_sharing: the draft steps read only lengths, request slots and positions.
    """

    steps: int = 2
    max_batch: int = 64
    compress_ratio: int = 4
    page_size: int = 64
    context: int = 16384
    slots: int = 73
    index_sharing: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes that cannot be served."""
        for name, limit in SETTINGS_LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise SettingsError(f"{name} must be a whole number from 1 to {limit}, not {value!r}")
        if self.page_size % self.compress_ratio:
            raise SettingsError(f"page_size {self.page_size} is not a multiple of compress_ratio {self.compress_ratio}")
        if self.slots <= self.max_batch:
            raise SettingsError(
                f"{self.slots} slots are too few for a batch of {self.max_batch} and the reserved slot 0"
            )
        if self.context <= self.draft_tokens:
            raise SettingsError(f"context {self.context} leaves no room for {self.draft_tokens} draft tokens")
        if type(self.index_sharing) is not bool:
            raise SettingsError(f"index_sharing must be true or false, not {self.index_sharing!r}")
        if self.slots * self.table_width >= _MOST_TABLE_ENTRIES:
            raise SettingsError(
                f"a table of {self.slots} slots with {self.table_width} tokens is too large; lower context or max_batch"
            )
        if self.buffer_entries >= _MOST_BUFFER_ENTRIES:
            raise SettingsError(
                f"page tables and ring groups have {self.buffer_entries} entries, must have fewer than "
                f"{_MOST_BUFFER_ENTRIES}, with max_batch {self.max_batch}, steps {self.steps}, context {self.context}, "
                f"page_size {self.page_size} and compress_ratio {self.compress_ratio}; lower max_batch, steps or "
                "context, or raise page_size"
            )

    @property
    def draft_tokens(self) -> int:
        """Rows a request in verify: the drafted tokens and the one before them."""
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
    def most_pages(self) -> int:
        """Pages that can be told apart in a table of int32 slots, and that the serving loop can keep account of."""
        return min(_MOST_PAGES, (1 << 31) // self.page_size)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that graphs are captured for, ascending."""
        return graph_buckets(self.max_batch)


@dataclass(frozen=True, slots=True)
class Round:
    """The live batch of one speculative round.

    Attributes:
        time: seconds since the first arrival.
        seq_lens: length of each request before the draft.
        slots: row of each request in the request table.
        extend_lens: tokens that verify accepted of each request and that draft extend takes over; 0 for a request that
            is finished by them.
        pages: entries to write into the table before the round, as (slot, page number in the request, page id).
    """

    time: float
    seq_lens: list[int]
    slots: list[int]
    extend_lens: list[int]
    pages: list[tuple[int, int, int]]


def graph_buckets(max_batch: int) -> tuple[int, ...]:
    """Batch sizes that graphs are captured for: 1, 2, 4, then every eighth with 12 between, up to ``max_batch``."""
    sizes = [1, 2, 4, 8, 12, *range(16, max_batch, 8)]
    return (*(size for size in sizes if size < max_batch), max_batch)


class RoundWriter:
    """Writes rounds to a file; a context manager."""

    def __init__(self, path: str | Path, settings: RoundSettings) -> None:
        """Opens ``path`` and writes the settings.

        Raises:
            TraceError: it cannot be opened or written; so do all methods.
        """
        self._path = path
        self._file = _open(path, "wt")
        self._line({"format": _FORMAT, "version": _VERSION, **asdict(settings)})

    def __enter__(self) -> RoundWriter:
        """Returns itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes the file, which writes what is left of it."""
        try:
            self._file.close()
        except OSError as failed:
            if error is None:  # Else the first error says why.
                raise self._cannot_write(failed) from failed

    def write(self, item: Round) -> None:
        """Appends a round."""
        self._line(
            {
                "time": round(item.time, 6),
                "seq_lens": item.seq_lens,
                "slots": item.slots,
                "extend_lens": item.extend_lens,
                "pages": item.pages,
            }
        )

    def _line(self, value: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(value, separators=(",", ":")) + "\n")
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> TraceError:
        return TraceError(cannot_write(str(self._path), error))


def read_rounds(path: str | Path) -> tuple[RoundSettings, Iterator[Round]]:
    """Opens a file of recorded rounds.

    Returns:
        The settings, and the rounds as they are read.

    Raises:
        TraceError: the file is missing or is not such a file; the rounds raise it for a line that does not hold.
    """
    lines = _lines(path)
    place, header = next(lines, (f"{path}, line 1", {}))
    if header.get("format") != _FORMAT or header.get("version") != _VERSION:
        raise TraceError(f"{place}: not a file of recorded rounds, version {_VERSION} ({_FORMAT})")
    try:
        settings = RoundSettings(**{field.name: header[field.name] for field in fields(RoundSettings)})
    except KeyError as error:
        raise TraceError(f"{place}: the setting {error.args[0]} is missing") from None
    except (ValueError, TypeError) as error:
        raise TraceError(f"{place}: {error}") from None
    return settings, (_round(place, value, settings) for place, value in lines)


def _open(path: str | Path, mode: str) -> IO[Any]:
    opener: Any = gzip.open if str(path).endswith(".gz") else open
    try:
        file: IO[Any] = opener(path, mode, encoding="utf-8" if "t" in mode else None)
    except OSError as error:
        raise TraceError(f"cannot open {path}: {error.strerror or error}") from error
    return file


def _lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines with their places. They are decoded one by one: a file that decodes ahead fails at an earlier line."""
    number = 1  # Of the line that is read next.
    with _open(path, "rb") as file:
        while True:
            place = f"{path}, line {number}"
            try:
                line: bytes = file.readline(_LONGEST_LINE)
                if not line:
                    return
                if len(line) == _LONGEST_LINE:
                    raise ValueError(f"it is longer than {_LONGEST_LINE} bytes")
                # Some editors put a byte order mark before the first line.
                value = json.loads(line.rstrip().decode("utf-8-sig"))
            except json.JSONDecodeError as error:
                # Its own text counts lines too, within this one.
                raise TraceError(f"{place}: cannot be read: {error.msg}, at character {error.pos + 1}") from error
            except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
                raise TraceError(f"{place}: cannot be read: {error}") from error
            if not isinstance(value, dict):
                raise TraceError(f"{place}: cannot be read: not a JSON object")
            yield place, value
            number += 1


def _round(place: str, value: dict[str, Any], settings: RoundSettings) -> Round:
    longest = settings.context - settings.draft_tokens
    try:
        seq_lens = _ints(value["seq_lens"], 1, longest, "a length")
        slots = _ints(value["slots"], 1, settings.slots - 1, "a request slot")
        extend_lens = _ints(value["extend_lens"], 0, settings.draft_tokens, "an extend length")
        pages = [_page(entry, settings) for entry in _list(value["pages"])]
        time = _time(value["time"])
    except KeyError as error:
        raise TraceError(f"{place}: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise TraceError(f"{place}: {error}") from None
    if not len(seq_lens) == len(slots) == len(extend_lens) or not 1 <= len(seq_lens) <= settings.max_batch:
        raise TraceError(
            f"{place}: {len(seq_lens)} lengths, {len(slots)} slots and {len(extend_lens)} extend lengths; "
            f"expected as many of each, 1 to {settings.max_batch}"
        )
    return Round(time, seq_lens, slots, extend_lens, pages)


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError(f"expected a list, found {values!r}")
    return values


def _time(value: Any) -> float:
    # An integer beyond all floats compares, but does not convert.
    if type(value) not in (int, float) or not 0 <= value < _MOST_SECONDS:
        raise ValueError(f"{str(value)[:40]!r} is not a time from 0 to {_MOST_SECONDS} seconds")
    return float(value)


def _ints(values: Any, least: int, most: int, what: str) -> list[int]:
    found = _list(values)
    for value in found:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{value!r} is not {what} from {least} to {most}")
    return found


def _page(entry: Any, settings: RoundSettings) -> tuple[int, int, int]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError(f"{entry!r} is not a page entry (slot, page number, page id)")
    _ints(entry[:1], 1, settings.slots - 1, "a request slot")
    _ints(entry[1:2], 0, settings.max_pages - 1, "a page number")
    _ints(entry[2:], 1, (1 << 31) // settings.page_size - 1, "a page id")
    return entry[0], entry[1], entry[2]
