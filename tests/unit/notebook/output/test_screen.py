"""Terminals and logs: how far a run is, in lines that are written over, or now and then."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jdist.notebook.output import screen as screens
from jdist.notebook.output.screen import LoggedNotebookScreen, NotebookScreen, TerminalScreen, kernel_screen, plain
from jdist.notebook.output.terminal_emulator import LineAssembler

FOOTER = "run 1 · 0 of 4 ranks done · 1 s"


class Terminal(io.StringIO):
    """A stdout that is a terminal, and what stands on it."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        done: list[str] = []
        assembler = LineAssembler(lambda: done.pop() if done else None)
        for piece in self.getvalue().splitlines(keepends=True):
            done += assembler.feed(piece)
        return [*done, *assembler.current]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "40"), ("LINES", "6")):
        monkeypatch.setenv(name, value)


def test_a_terminal_shows_how_far_a_run_is_below_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = TerminalScreen(), Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for percent in (10, 20):
        screen.show_status(lambda percent=percent: [f"[0] {percent}%|█  |", FOOTER])
        assert terminal.lines == [*(["[0] a line"] if percent == 20 else []), f"[0] {percent}%|█  |", FOOTER]
        screen.show(plain("[0] a line" if percent == 10 else "[0] another"))
    assert terminal.lines == ["[0] a line", "[0] another"]
    screen.show_status(lambda: [FOOTER])
    screen.end_status()
    assert terminal.lines == ["[0] a line", "[0] another"]
    written = terminal.getvalue()
    screen.end_status()
    assert terminal.getvalue() == written, "nothing is written over that is not the status"


def test_a_status_never_wraps_nor_scrolls(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = TerminalScreen(), Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    screen.show_status(lambda: [f"\x1b[31m{n}{'x' * 100}\x1b[0m" for n in range(9)])
    assert terminal.lines == [f"{n}{'x' * 38}" for n in range(5, 9)]
    screen.show(plain("whole"))
    assert terminal.lines == ["whole"]


def test_a_log_is_told_after_silence_and_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stdout", log)
    screen = TerminalScreen(clock=clock)
    told = []
    for second in range(3600):
        clock.now = float(second)
        screen.show_status(lambda: [FOOTER])
        if log.getvalue().count("\n") > len(told):
            told.append(second)
    assert told == [30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]
    screen.show(plain("[0] a line"))
    clock.now += 29
    screen.show_status(lambda: [FOOTER])
    assert log.getvalue().endswith("a line\n")
    clock.now += 1
    screen.show_status(lambda: [FOOTER])
    assert log.getvalue().endswith(f"a line\n{FOOTER}\n")
    assert "\x1b" not in log.getvalue()


@pytest.fixture
def kernel_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logger = logging.getLogger("the kernel's")
    logger.handlers = [logging.StreamHandler(stream)]
    monkeypatch.setattr(screens, "get_logger", lambda: logger)
    yield stream
    logger.handlers = []


def test_a_notebook_that_is_executed_tells_the_kernels_log(kernel_log: io.StringIO) -> None:
    clock = Clock()
    screen = LoggedNotebookScreen(clock)
    for second in range(95):
        clock.now = float(second)
        screen.show_status(lambda: ["[0-3] step", FOOTER])
    assert kernel_log.getvalue() == f"[0-3] step\n{FOOTER}\n" * 2


@pytest.mark.parametrize(
    ("words", "kind", "writes_over"),
    [
        (["/usr/bin/python", "/usr/bin/jupyter-lab"], NotebookScreen, None),
        (["python", "/usr/bin/papermill", "a.ipynb", "b.ipynb"], NotebookScreen, None),
        (["python", "-m", "papermill", "a.ipynb", "--log-output", "b.ipynb"], LoggedNotebookScreen, None),
        (["python", "/usr/bin/jupyter-nbconvert", "--execute", "a.ipynb"], LoggedNotebookScreen, None),
        (["python", "-m", "nbconvert", "--execute", "a.ipynb"], LoggedNotebookScreen, None),
        (["python", "/usr/bin/jupyter-execute", "a.ipynb"], LoggedNotebookScreen, None),
        (["python", "/usr/bin/jupyter-run", "a.py"], TerminalScreen, False),
        (["python", "/usr/bin/jupyter-console"], TerminalScreen, True),
    ],
)
def test_a_kernels_screen_is_that_of_the_program_that_started_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], kind: type, writes_over: bool | None
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "\0".join(words))
    found = kernel_screen()
    assert type(found) is kind
    if isinstance(found, TerminalScreen):
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stdout", shown)
        found.show_status(lambda: [FOOTER])
        found.end_status()
        assert ("\x1b[1F" in shown.getvalue()) is writes_over
