"""Quantities: numbers become text of a few digits, and what users write becomes numbers or an error that says how."""

from __future__ import annotations

import argparse

import pytest

from jdist.core.errors import UsageError
from jdist.core.quantities import (
    ArgumentParser,
    HelpWanted,
    format_bytes,
    format_count,
    format_duration,
    format_interval,
    format_memory,
    format_rate,
    format_whole_seconds,
    parse_amount,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (2.5e9, "2.5 GB"),
        (3e16, "30000 TB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text
    assert format_rate(count) == f"{text}/s"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (512 << 10, "512 KiB"),
        (3 << 20, "3 MiB"),
        (1000 << 30, "1000 GiB"),
        (1536 << 30, "1.5 TiB"),
    ],
)
def test_memory(count: int, text: str) -> None:
    assert format_memory(count) == text


@pytest.mark.parametrize(
    ("seconds", "text", "whole"),
    [
        (0.4, "0.40 s", "0 s"),
        (3.14, "3.1 s", "3 s"),
        (59.4, "59 s", "59 s"),
        (125, "2 min 5 s", "2 min 5 s"),
        (3840, "1 h 4 min", "1 h 4 min"),
    ],
)
def test_durations(seconds: float, text: str, whole: str) -> None:
    assert format_duration(seconds) == text
    assert format_whole_seconds(seconds) == whole


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-9, "0"),
        (12e-6, "12 µs"),
        (0.0999, "99.9 ms"),
        (0.99951, "1 s"),
        (1.234, "1.23 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_intervals(value: float, text: str) -> None:
    assert format_interval(value) == text


def test_counts() -> None:
    assert [format_count(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_what_users_write_is_read() -> None:
    assert [parse_duration(t) for t in ("20", "1.5s", "5m", "1h", ".5")] == [20, 1.5, 300, 3600, 0.5]
    assert (parse_count("12"), parse_amount("0.5")) == (12, 0.5)


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_duration, "0"), (parse_duration, "5x"), (parse_count, "0"), (parse_count, "²"), (parse_amount, "-1")],
)
def test_anything_else_is_refused(parse: object, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not '"):
        parse(text)  # type: ignore[operator]


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    parser = ArgumentParser("--launcher x --")
    parser.add_argument("--nodes", type=parse_count)
    assert parser.parse(["--nodes", "2"]).nodes == 2
    with pytest.raises(UsageError, match=r"--launcher x --: does not understand --node; did you mean --nodes\?"):
        parser.parse(["--node", "2"])
    with pytest.raises(UsageError, match="a whole number of at least 1"):
        parser.parse(["--nodes", "none"])
    with pytest.raises(HelpWanted, match="usage: --launcher x --"):
        parser.parse(["--help"])
