"""Request traces, generated traffic and recorded rounds."""

from __future__ import annotations

import gzip
import json
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from qsa_group.demo.rounds import Round, RoundSettings, SettingsError, read_rounds, record
from qsa_group.demo.trace import (
    CONTEXT_TOKENS,
    GENERATED_TOKENS,
    REQUESTS_PER_SECOND,
    Request,
    TraceError,
    generate,
    read_workload,
)

SETTINGS = RoundSettings(max_batch=4, context=256, slots=6)
ROUNDS = [
    Round(0.25, [60, 100], [3, 1], [1, 4], [(3, 0, 7), (1, 0, 2), (1, 1, 9)]),
    Round(0.5, [61], [3], [0], []),
]


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_a_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    path = csv_file(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:51.2224670,879,55\n"
        "2023-11-16 18:15:50.9951690,396,109\n",
    )
    requests = read_workload(path)
    assert [(r.context_tokens, r.generated_tokens) for r in requests] == [(374, 44), (396, 109), (879, 55)]
    assert [r.arrival for r in requests] == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-5)
    assert read_workload(path, limit=1) == [Request(0.0, 374, 44)]


@pytest.mark.parametrize(
    "stamp", ["2024-05-10 00:00:00.009930+00:00", "2024-05-10T00:00:00Z", "1715299200", "0.5", "2024-05-10 00:00:00.5"]
)
def test_times_come_in_several_forms(tmp_path: Path, stamp: str) -> None:
    path = csv_file(tmp_path, f"arrived,generated_tokens,TimeStamp,context_tokens\nx,3,{stamp},5\n")
    assert read_workload(path) == [Request(0.0, 5, 3)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 must have the columns TIMESTAMP, ContextTokens, GeneratedTokens, has nothing"),
        ("a,b,c\n1,2,3\n", "line 1 must have the columns TIMESTAMP, ContextTokens, GeneratedTokens, has a, b, c"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "line 2: 2 columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n1,0,3\n", "line 3: '0' is not a number of tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,many\n", "'many' is not a number of tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,99999999999\n", "is not a number of tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,2,3\n", "'soon' is neither a date nor"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnan,2,3\n", "is not finite"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read_workload(csv_file(tmp_path, text))


def test_a_missing_or_binary_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read the workload"):
        read_workload(tmp_path / "absent.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot read the workload"):
        read_workload(binary)


def test_generated_traffic_has_the_measured_statistics() -> None:
    requests = generate(20_000, seed=3)
    for points, values in (
        (CONTEXT_TOKENS, [r.context_tokens for r in requests]),
        (GENERATED_TOKENS, [r.generated_tokens for r in requests]),
    ):
        values.sort()
        for share, tokens in points[1:-1]:
            assert values[int(share * len(values))] == pytest.approx(tokens, rel=0.08, abs=1)
        assert points[0][1] <= values[0]
        assert values[-1] <= points[-1][1]
    gaps = [b.arrival - a.arrival for a, b in pairwise(requests)]
    assert min(gaps) >= 0
    assert 1 / statistics.fmean(gaps) == pytest.approx(REQUESTS_PER_SECOND, rel=0.05)


def test_a_seed_gives_the_same_traffic() -> None:
    assert generate(50, seed=1) == generate(50, seed=1) != generate(50, seed=2)


def test_a_byte_order_mark_is_no_part_of_a_file_of_rounds(tmp_path: Path) -> None:
    path = rounds_file(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(list(read_rounds(path)[1])) == 1


def write_rounds(path: Path, rounds: list[Round]) -> None:
    """A file of recorded rounds."""
    assert list(record(path, SETTINGS, rounds)) == rounds


@pytest.mark.parametrize("name", ["rounds.jsonl", "rounds.jsonl.gz"])
def test_recorded_rounds_come_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_rounds(path, ROUNDS)
    settings, rounds = read_rounds(path)
    assert settings == SETTINGS
    assert list(rounds) == ROUNDS


def test_a_record_that_is_closed_early_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl.gz"
    recorded = record(path, SETTINGS, ROUNDS)
    assert next(recorded) == ROUNDS[0]
    recorded.close()
    assert list(read_rounds(path)[1]) == ROUNDS[:1]


def rounds_file(tmp_path: Path, *, header: dict[str, object] | None = None, **changes: object) -> Path:
    """A file of one round, with some of it changed; None takes a key away."""
    path = tmp_path / "rounds.jsonl"
    write_rounds(path, ROUNDS[:1])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, change in zip(lines, (header or {}, changes), strict=True):
        line.update(change)
        for key in [key for key, value in line.items() if value is None]:
            del line[key]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq_lens": None}, "line 2: seq_lens is missing"),
        ({"seq_lens": [60]}, r"have \[1, 2, 2\] entries, must have as many each, from 1 to 4"),
        ({"seq_lens": [], "slots": [], "extend_lens": []}, r"have \[0, 0, 0\] entries"),
        ({"seq_lens": [60, 0]}, "seq_lens has value 0, must be whole numbers from 1 to 252"),
        ({"seq_lens": [60, 253]}, "seq_lens has value 253"),
        ({"seq_lens": [60, True]}, "seq_lens has value True"),
        ({"seq_lens": 5}, "seq_lens has value 5, must be a list"),
        ({"slots": [3, 6]}, "slots has value 6, must be whole numbers from 1 to 5"),
        ({"extend_lens": [1, 5]}, "extend_lens has value 5, must be whole numbers from 0 to 4"),
        ({"pages": [[6, 0, 1]]}, "pages has value 6, must be whole numbers from 1 to 5"),
        ({"pages": [[1, 4, 1]]}, "pages has value 4, must be whole numbers from 0 to 3"),
        ({"pages": [[1, 0, 0]]}, "pages has value 0, must be whole numbers from 1 to 33554431"),
        ({"pages": [[1, 0]]}, "pages must hold entries of slot, page number and page id"),
        ({"pages": 5}, "line 2: "),
        *(({"time": time}, "time has value .*, must be a finite number") for time in ("5", [], float("nan"), 1e400)),
        ({"time": 10**400}, "line 2: int too large"),
        ({"header": {"version": 2}}, "not a file of recorded rounds, version 1"),
        ({"header": {"context": None}}, "the setting context is missing"),
        ({"header": {"page_size": 0}}, "line 1: page_size has value 0, must be a whole number from 1"),
        ({"header": {"slots": "6"}}, "line 1: slots has value '6', must be a whole number from 1"),
    ],
)
def test_a_bad_rounds_file_is_refused_with_its_line(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = rounds_file(tmp_path, **changes)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=words):
        list(read_rounds(path)[1])


def test_other_files_are_no_rounds(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="absent: cannot be read: No such file"):
        read_rounds(tmp_path / "absent")
    for name, content in (("empty", b""), ("text", b"a,b\n"), ("list", b"[]\n"), ("plain.gz", b"{}\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TraceError, match=name):
            read_rounds(path)
    cut = tmp_path / "cut.gz"
    write_rounds(cut, ROUNDS[:1] * 500)
    whole = cut.read_bytes()
    assert len(gzip.decompress(whole).splitlines()) == 501
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"cut.gz, line \d+: cannot be read"):
        list(read_rounds(cut)[1])


@pytest.mark.parametrize("name", ["rounds.jsonl", "rounds.jsonl.gz"])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b'{"time":0.5\n', "Expecting ',' delimiter, at character 12"),
        (b'{"time":0.5\r\n', "Expecting ',' delimiter, at character 12"),
        (b'{"time":}', "Expecting value, at character 9"),
        (b"\n", "Expecting value, at character 1"),
        (b'{"time":"\xff"}\n', "'utf-8' codec can't decode byte 0xff in position 9: invalid start byte"),
        (b"[" * 100_000 + b"\n", "maximum recursion depth exceeded"),
        (b"[1]\n", "not a JSON object"),
    ],
)
def test_a_line_that_is_no_json_is_named_once(tmp_path: Path, name: str, bad: bytes, words: str) -> None:
    path = tmp_path / name
    write_rounds(path, ROUNDS)
    opener = gzip.open if name.endswith(".gz") else open
    with opener(path, "ab") as file:
        file.write(bad)
    rounds = read_rounds(path)[1]
    assert [next(rounds), next(rounds)] == ROUNDS
    with pytest.raises(TraceError) as caught:
        next(rounds)
    assert str(caught.value).startswith(f"{path}, line 4: cannot be read: {words}")
    assert str(caught.value).count("line") == str(path).count("line") + 1


@pytest.mark.parametrize("cut", [False, True])
def test_a_broken_file_is_broken_at_the_first_line_that_is_not_read(tmp_path: Path, cut: bool) -> None:
    path = tmp_path / "rounds.jsonl.gz"
    write_rounds(path, ROUNDS * 500)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle:] = b"" if cut else bytes(len(data) - middle)
    path.write_bytes(data)
    read: list[Round] = []
    with pytest.raises(TraceError) as caught:
        read.extend(read_rounds(path)[1])  # Keeps those before the error.
    assert read == (ROUNDS * 500)[: len(read)]
    assert str(caught.value).startswith(f"{path}, line {len(read) + 2}: cannot be read: ")


@pytest.mark.parametrize(
    ("most", "buckets"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (16, (1, 2, 4, 8, 12, 16)),
        (40, (1, 2, 4, 8, 12, 16, 24, 32, 40)),
        (20, (1, 2, 4, 8, 12, 16, 20)),
    ],
)
def test_graph_buckets(most: int, buckets: tuple[int, ...]) -> None:
    assert RoundSettings(max_batch=most).buckets == buckets


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps has value 0, must be a whole number from 1"),
        ({"max_batch": 1.5}, "max_batch has value 1.5, must be a whole number"),
        ({"max_batch": 73}, "slots has value 73, must be above max_batch, 73"),
        ({"context": 4}, "context has value 4, must be above the 4 draft tokens"),
        (
            {"context": 1 << 24, "slots": 1000},
            "have 16777216000 and 167774720 entries, must have fewer than 2147483648",
        ),
        ({"context": 1 << 24, "page_size": 4}, "have 1224736768 and 2684357120 entries, must have fewer"),
    ],
)
def test_sizes_that_cannot_be_served_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        replace(RoundSettings(), **changes)  # type: ignore[arg-type]
