"""Request traffic: traces of real services, and a generator with the same statistics.

A trace is a CSV file with a header and three columns: arrival time, context tokens, generated tokens. The Azure LLM
inference traces have this format (``TIMESTAMP,ContextTokens,GeneratedTokens``). Times are ISO dates or plain seconds.
"""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice, pairwise
from pathlib import Path

from qsa_group import QsaGroupError

__all__ = ["CONTEXT_TOKENS", "GENERATED_TOKENS", "REQUESTS_PER_SECOND", "Request", "TraceError"]
__all__ += ["generate", "read_workload"]

CONTEXT_TOKENS = ((0.0, 2), (0.25, 410), (0.5, 1047), (0.9, 2468), (0.99, 4114), (1.0, 7930))
"""Quantiles of prompt lengths, as (share of requests, tokens at most). Measured, as the next two, on the first 4,000
requests of the Azure LLM inference trace of conversations, 2023."""

GENERATED_TOKENS = ((0.0, 10), (0.25, 90), (0.5, 204), (0.9, 430), (0.99, 625), (1.0, 1000))
"""Quantiles of answer lengths."""

REQUESTS_PER_SECOND = 4.9
"""Mean rate of arrivals."""

_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_FRACTION = re.compile(r"\.(\d+)")
_MOST_TOKENS = (1 << 31) - 1


class TraceError(QsaGroupError, ValueError):
    """A file of requests or of rounds cannot be read or written; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Attributes:
        arrival: seconds after the first request.
        context_tokens: length of the prompt, at least 1.
        generated_tokens: length of the answer, at least 1.
    """

    arrival: float
    context_tokens: int
    generated_tokens: int


def read_workload(path: str | Path, *, limit: int | None = None) -> list[Request]:
    """Reads a request trace.

    Args:
        path: the CSV file.
        limit: read at most so many requests.

    Returns:
        The requests in order of arrival, the first at 0 seconds.

    Raises:
        TraceError: the file is missing, is not such a trace, or holds no request.
    """
    place = str(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = _columns(next(reader, []))
            requests = []
            for row in islice(filter(None, reader), limit):
                place = f"{path}, line {reader.line_num}"
                requests.append(_request(row, columns))
    except OSError as error:
        raise TraceError(f"cannot read the workload {path!r}: {error.strerror or error}; name a CSV file") from error
    except (ValueError, csv.Error) as error:
        raise TraceError(f"cannot read the workload {place}: {error}") from error
    if not requests:
        raise TraceError(f"the workload {path} holds no request; name a file with one at least")
    requests.sort(key=lambda request: request.arrival)
    return [replace(request, arrival=request.arrival - requests[0].arrival) for request in requests]


def generate(count: int, *, seed: int = 0) -> list[Request]:
    """Draws requests with the statistics of a real trace of conversations.

    Arrivals are independent of each other (exponential gaps). Lengths follow the quantiles, log-linear between them.

    Args:
        count: number of requests.
        seed: the same seed gives the same requests.
    """
    draw = random.Random(seed)
    arrival = 0.0
    requests = []
    for _ in range(count):
        context, generated = (_quantile(points, draw.random()) for points in (CONTEXT_TOKENS, GENERATED_TOKENS))
        requests.append(Request(arrival, context, generated))
        arrival += draw.expovariate(REQUESTS_PER_SECOND)
    return requests


def _quantile(points: Sequence[tuple[float, int]], share: float) -> int:
    """Tokens at a share of requests, log-linear between the ``points``."""
    for (low, least), (high, most) in pairwise(points):
        if share <= high:
            part = (share - low) / (high - low)
            return max(1, round(math.exp(math.log(least) + part * (math.log(most) - math.log(least)))))
    return points[-1][1]


def _columns(header: list[str]) -> list[int]:
    names = [name.strip().lower().replace("_", "") for name in header]
    if any(column not in names for column in _COLUMNS):
        found = ", ".join(header)[:80] or "nothing"
        raise ValueError(f"line 1 must have the columns TIMESTAMP, ContextTokens, GeneratedTokens, has {found}")
    return [names.index(column) for column in _COLUMNS]


def _request(row: list[str], columns: list[int]) -> Request:
    if len(row) <= max(columns):
        raise ValueError(f"{len(row)} columns, must be {max(columns) + 1} at least")
    arrival, context, generated = (row[column].strip() for column in columns)
    return Request(_seconds(arrival), _tokens(context), _tokens(generated))


def _tokens(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_TOKENS:
        raise ValueError(f"{text!r} is not a number of tokens from 1 to {_MOST_TOKENS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        # Python 3.10 takes 3 or 6 digits after the point; the traces have 7.
        plain = _FRACTION.sub(lambda match: "." + match[1][:6].ljust(6, "0"), text).replace("Z", "+00:00")
        try:
            date = datetime.fromisoformat(plain)
        except ValueError:
            raise ValueError(f"{text!r} is neither a date nor a number of seconds") from None
        value = (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    if not math.isfinite(value):
        raise ValueError(f"the arrival time {text!r} is not finite")
    return value
