"""Terminals and logs: how far a run is, in lines that are written over, or now and then."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ipywidgets
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher

from jdist.notebook.output import screen as screens
from jdist.notebook.output.screen import (
    Bundle,
    LoggedNotebookScreen,
    NotebookScreen,
    Replaceable,
    TerminalScreen,
    kernel_screen,
    plain,
)
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


def test_a_log_gets_a_line_of_progress_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stdout", log)
    screen = TerminalScreen(clock=clock)
    told = []
    for second in range(400):
        clock.now = float(second)
        screen.show_status(lambda: ["[0] 5%", FOOTER])
        if log.getvalue().count("\n") > len(told):
            told.append(second)
    assert told == [120, 240, 360]
    screen.show(plain("[0] a line"))
    clock.now += 119
    screen.show_status(lambda: [FOOTER])
    assert log.getvalue().endswith("a line\n")
    clock.now += 1
    screen.show_status(lambda: [FOOTER])
    assert log.getvalue().endswith(f"a line\n{FOOTER}\n")
    assert "\x1b" not in log.getvalue()


class Publisher(DisplayPublisher):
    """Publishes as a kernel does; ``shown`` is what a front end then shows."""

    def __init__(self) -> None:
        super().__init__()
        self.displays: list[tuple[Bundle, dict[str, str]]] = []

    @property
    def shown(self) -> list[Bundle]:
        return [data for data, _ in self.displays]

    def publish(  # type: ignore[override]
        self, data: Bundle, metadata: Any = None, *, transient: dict[str, str], update: bool = False
    ) -> None:
        if update:
            self.displays = [(data if t == transient else shown, t) for shown, t in self.displays]
        else:
            self.displays.append((data, transient))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(display_pub=Publisher(), get_parent=lambda: {"header": {"msg_id": "the cell"}})
    monkeypatch.setattr("IPython.get_ipython", lambda: found)
    return found


def test_captured_output_holds_the_last_state_only(shell: SimpleNamespace) -> None:
    shell.display_pub = captured = CapturingDisplayPublisher()
    place = Replaceable(NotebookScreen())
    for step in range(5):
        place.show(plain(f"step {step}"))
    shell.display_pub = Publisher()
    place.show(plain("done"))
    assert [(each["data"], each["update"]) for each in captured.outputs] == [(plain("done"), False)]
    assert not shell.display_pub.shown


@pytest.mark.parametrize("is_shown", [True, False])
def test_what_captures_another_cells_output_gets_nothing_of_this_one(shell: SimpleNamespace, is_shown: bool) -> None:
    own = shell.display_pub
    place = Replaceable(NotebookScreen())
    if is_shown:
        place.show(plain("step 0"))
    shell.display_pub = captured = CapturingDisplayPublisher()
    place.show(plain("step 1"))
    place.show(plain("step 2"))
    assert own.shown == [plain("step 2")]
    assert not captured.outputs


def test_a_widget_that_takes_output_is_no_place_for_updates(shell: SimpleNamespace) -> None:
    widget = ipywidgets.Output()
    try:
        assert Replaceable(NotebookScreen()).is_live
        widget.msg_id = "the cell"
        place = Replaceable(NotebookScreen())
        assert not place.is_live
        place.show(plain("paused"))
        place.show(plain("done"))
        assert shell.display_pub.shown == [plain("paused"), plain("done")]
    finally:
        widget.close()


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
    for second in range(245):
        clock.now = float(second)
        screen.show_status(lambda: ["[0-3] step", FOOTER])
    assert kernel_log.getvalue() == f"{FOOTER}\n" * 2


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
    monkeypatch.setattr("psutil.Process.cmdline", lambda _self: words)
    found = kernel_screen()
    assert type(found) is kind
    if isinstance(found, TerminalScreen):
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stdout", shown)
        found.show_status(lambda: [FOOTER])
        found.end_status()
        assert ("\x1b[1F" in shown.getvalue()) is writes_over
