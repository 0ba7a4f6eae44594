"""Request traffic: reading traces of real services, and a generator with the same statistics.

A trace is a CSV file with a header and three columns: arrival time, context tokens, generated tokens. That is the
format of the Azure LLM inference traces (``TIMESTAMP,ContextTokens,GeneratedTokens``). Times are ISO dates or plain
seconds.
"""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

from .errors import QsaGroupError

__all__ = ["TRAFFIC", "Request", "TraceError", "Traffic", "generate", "read_workload"]

_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
_FRACTION = re.compile(r"\.(\d+)")


class TraceError(QsaGroupError, ValueError):
    """A workload or rounds file cannot be read; the message names file and line."""


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


@dataclass(frozen=True, slots=True)
class Traffic:
    """Statistics of a kind of traffic, as (share of requests, tokens at most) points.

    Attributes:
        context: points of the distribution of prompt lengths.
        generated: points of the distribution of answer lengths.
        requests_per_second: mean arrival rate.
    """

    context: tuple[tuple[float, int], ...]
    generated: tuple[tuple[float, int], ...]
    requests_per_second: float


TRAFFIC = {
    "conversation": Traffic(
        context=((0.0, 2), (0.25, 410), (0.5, 1047), (0.9, 2468), (0.99, 4114), (1.0, 7930)),
        generated=((0.0, 10), (0.25, 90), (0.5, 204), (0.9, 430), (0.99, 625), (1.0, 1000)),
        requests_per_second=4.9,
    ),
    "code": Traffic(
        context=((0.0, 6), (0.25, 592), (0.5, 1445), (0.9, 5108), (0.99, 7436), (1.0, 7437)),
        generated=((0.0, 6), (0.25, 9), (0.5, 13), (0.9, 54), (0.99, 246), (1.0, 1899)),
        requests_per_second=2.9,
    ),
}
"""Measured on the first 4,000 requests of the two Azure LLM inference traces of 2023."""


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
    requests: list[Request] = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = _columns(path, next(reader, []))
            for row in reader:
                if limit is not None and len(requests) >= limit:
                    break
                if row:
                    requests.append(_request(f"{path}, line {reader.line_num}", row, columns))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot read the workload {path}: {error}") from error
    if not requests:
        raise TraceError(f"{path} holds no request")
    requests.sort(key=lambda request: request.arrival)
    first = requests[0].arrival
    return [Request(r.arrival - first, r.context_tokens, r.generated_tokens) for r in requests]


def generate(
    count: int,
    *,
    traffic: str = "conversation",
    seed: int = 0,
) -> list[Request]:
    """Draws requests with the statistics of a real trace.

    Arrivals are independent of each other (exponential gaps); lengths follow the published quantiles, log-linear
    between them.

    Args:
        count: number of requests.
        traffic: a key of ``TRAFFIC``.
        seed: the same seed gives the same requests.
    """
    kind = TRAFFIC[traffic]
    draw = random.Random(seed)
    arrival = 0.0
    requests = []
    for _ in range(count):
        requests.append(
            Request(arrival, _quantile(kind.context, draw.random()), _quantile(kind.generated, draw.random()))
        )
        arrival += draw.expovariate(kind.requests_per_second)
    return requests


def _quantile(points: Sequence[tuple[float, int]], share: float) -> int:
    """Inverse of the distribution that runs log-linearly through ``points``."""
    for (low, least), (high, most) in pairwise(points):
        if share <= high:
            part = (share - low) / (high - low)
            return max(1, round(math.exp(math.log(least) + part * (math.log(most) - math.log(least)))))
    return points[-1][1]


def _columns(path: str | Path, header: list[str]) -> tuple[int, int, int]:
    names = [name.strip().lower().replace("_", "") for name in header]
    try:
        arrival, context, generated = (names.index(column) for column in _COLUMNS)
    except ValueError:
        raise TraceError(
            f"{path}, line 1: expected the columns TIMESTAMP, ContextTokens, GeneratedTokens, "
            f"found {', '.join(header)[:80] or 'nothing'}"
        ) from None
    return arrival, context, generated


def _request(place: str, row: list[str], columns: tuple[int, int, int]) -> Request:
    if len(row) <= max(columns):
        raise TraceError(f"{place}: {len(row)} columns, expected at least {max(columns) + 1}")
    arrival, context, generated = (row[column].strip() for column in columns)
    return Request(_seconds(place, arrival), _tokens(place, context), _tokens(place, generated))


def _tokens(place: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value < 1 << 31:
        raise TraceError(f"{place}: {text!r} is not a number of tokens from 1 to {(1 << 31) - 1}")
    return value


def _seconds(place: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        # Python 3.10 takes 3 or 6 digits after the point; the traces have 7.
        plain = _FRACTION.sub(lambda match: "." + match[1][:6].ljust(6, "0"), text).replace("Z", "+00:00")
        try:
            date = datetime.fromisoformat(plain)
        except ValueError:
            raise TraceError(f"{place}: {text!r} is neither a date nor a number of seconds") from None
        value = (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    if not math.isfinite(value):
        raise TraceError(f"{place}: the arrival time {text!r} is not finite")
    return value
