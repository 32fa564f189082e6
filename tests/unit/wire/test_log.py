"""Logging: quiet by default, few lines of a kind, the newest records in memory; no text steers a terminal."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from jdist.wire import log


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Logged:
    """A logger with jdist's handler, and what it wrote."""

    def __init__(self, process: str = "agent") -> None:
        self.stream, self.clock = io.StringIO(), Clock()
        self.handler = log.LogHandler(process, self.stream, self.clock)
        self.logger = logging.Logger("jdist.agent", logging.DEBUG)  # noqa: LOG001 — one that no other test knows
        self.logger.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """The loggers of this process as they were before any configuration, and again after the test."""
    saved = {}
    for name in ("jdist", "asyncio"):
        logger = logging.getLogger(name)
        saved[name] = logger.handlers[:], logger.level, logger.propagate
        logger.handlers = [h for h in logger.handlers if not isinstance(h, log.LogHandler)]
    yield
    for name, (handlers, level, propagate) in saved.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_flood_is_a_few_lines_and_a_count() -> None:
    x = Logged()
    for n in range(1000):
        x.logger.warning("number %d", n)
    x.logger.warning("another kind")
    assert x.lines == [*(f"jdist agent: number {n}" for n in range(20)), "jdist agent: another kind"]
    x.clock.now += 10.0
    x.logger.warning("number %d", 5000)
    assert x.lines[21:] == ["jdist agent: number 5000 … and 980 more like that"]


def test_no_traceback_is_dropped() -> None:
    x = Logged()
    for n in range(50):
        try:
            raise ValueError(f"fault {n}\x1b[2J")
        except ValueError:
            x.logger.exception("a fault of jdist")
    faults = [line for line in x.lines if line.startswith("ValueError: fault")]
    assert faults == [f"ValueError: fault {n}\\x1b[2J" for n in range(50)]
    assert "test_log.py" in x.handler.records[-1].text


def test_what_a_terminal_would_obey_is_spelled_out_and_what_is_long_is_cut() -> None:
    x = Logged()
    x.logger.warning("%s", "a\x1b[2J\nb")
    x.logger.warning("%s", "x" * 5000)
    assert x.lines[0] == "jdist agent: a\\x1b[2J\\nb"
    assert len(x.lines[1]) < 500


def test_it_is_quiet_by_default_and_keeps_what_it_does_not_write(unconfigured: None) -> None:
    stream = io.StringIO()
    log.configure("agent", stream)
    logging.getLogger("jdist.agent").debug("dropped")
    logging.getLogger("jdist.wire").info("kept")
    assert stream.getvalue() == ""
    assert [(r.level, r.floor, r.text) for r in log.newest(10)] == [("INFO", "wire", "kept")]
    log.configure("agent", stream)
    logging.getLogger("jdist.agent").warning("once")
    assert stream.getvalue() == "jdist agent: once\n"
    assert [r.text for r in log.newest(1)] == ["once"]
    assert log.newest(0) == ()


def test_the_variable_lets_everything_through_in_lines_that_are_not_taken_for_reasons(
    unconfigured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDIST_LOG", "debug")
    stream = io.StringIO()
    log.configure("worker", stream)
    logging.getLogger("jdist.worker").debug("formed")
    logging.getLogger("jdist.worker").warning("broken")
    lines = stream.getvalue().splitlines()
    assert [line[13:] for line in lines] == ["jdist worker DEBUG: formed", "jdist worker WARNING: broken"]
    assert log.without_verbose([*lines, "Killed"]) == [lines[1], "Killed"]
    assert log.environment() == {"JDIST_LOG": "debug"}


def test_a_library_leaves_the_users_own_handlers_to_show_warnings() -> None:
    x = Logged("client")
    root = logging.getLogger()
    x.logger.warning("shown by the root logger's handlers" if root.handlers else "shown")
    assert len(x.lines) == (0 if root.handlers else 1)
    assert len(x.handler.records) == 1


def test_memory_is_bounded() -> None:
    x = Logged()
    for n in range(5000):
        x.logger.info("number %d", n)
    assert len(x.handler.records) == 2000
    assert x.handler.records[-1].text == "number 4999"
