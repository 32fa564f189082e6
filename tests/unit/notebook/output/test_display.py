"""A run on a screen: paused, it gives the notebook back, and its output goes on where it was."""

from __future__ import annotations

import asyncio
import io
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jdist.client.metrics.chart import MIME as METRICS
from jdist.client.run import CellRun
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import PauseReason, StackFrame
from jdist.core.messages.runs import Display, MetricsLogged, Output, RankDone, RunEnded, RunStarted, Text
from jdist.core.topology import Topology
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.run_json import MIME
from jdist.notebook.output.screen import Bundle, TerminalScreen, Update
from jdist.notebook.output.terminal_emulator import LineAssembler
from jdist.worker.metrics import MetricBuffer

AT = StackFrame("train_step", "", 8, "loss.backward()", 12)
CHECK = StackFrame("<cell>", "", 4, "if torch.isnan(loss): breakpoint()", 12)
DEADLINE = 60.0


class Screen:
    """Keeps what it shows, oldest first."""

    def __init__(self, is_live: bool) -> None:
        self.is_live = is_live
        self.shown: queue.SimpleQueue[Bundle] = queue.SimpleQueue()

    def show(self, bundle: Bundle) -> Update:
        self.shown.put(bundle)
        return self.shown.put

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError(prompt)

    def until(self, is_it: Callable[[str], bool]) -> Bundle:
        """The next bundle whose text is the one that is waited for."""
        while True:
            bundle = self.shown.get(timeout=DEADLINE)
            if is_it(bundle["text/plain"]):
                return bundle


class Terminal(io.StringIO):
    """Takes what is written to a terminal, and tells when some text was."""

    def __init__(self, until: str) -> None:
        super().__init__()
        self.is_seen = threading.Event()
        self._until = until

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._until in self.getvalue():
            self.is_seen.set()
        return count

    @property
    def lines(self) -> list[str]:
        """What stands there."""
        done: list[str] = []
        assembler = LineAssembler(lambda: done.pop() if done else None)
        for piece in self.getvalue().splitlines(keepends=True):
            done += assembler.feed(piece)
        return [*done, *assembler.current]


class Cluster:
    """Four ranks, without a controller."""

    name = "c"
    id = "c-1"
    topology = Topology((2, 2), ("alpha", "beta"))

    @property
    def asynchronous(self) -> Cluster:
        return self

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        return lambda: None


def paused(*ranks: int, at: StackFrame = AT, reason: PauseReason = "request") -> Iterator[Message]:
    return (RankPaused(12, rank, reason, at, 0) for rank in ranks)


@pytest.fixture
def run() -> CellRun:
    run = CellRun(12, (0, 1, 2, 3), Cluster.topology, lambda _: None)
    run.feed(RunStarted(12))
    run.feed(Output(12, (Text((0, 1, 2, 3), "stdout", "step 1\n"),)))
    return run


def displayed(run: CellRun, screen: Screen) -> RunDisplay:
    cluster: Any = Cluster()
    return RunDisplay(cluster, run, screen)


def end(run: CellRun) -> None:
    for rank in run.ranks:
        run.feed(RankDone(12, rank, "value"))
    run.feed(RunEnded(12, "", 1.0))


def test_a_paused_run_gives_the_notebook_back_and_goes_on_where_it_was(run: CellRun) -> None:
    screen = Screen(is_live=True)
    for message in (*paused(0, 2, 3), *paused(1, at=CHECK, reason="breakpoint")):
        run.feed(message)
    assert displayed(run, screen).follow(until_paused=True) is False
    bundle = screen.until(lambda text: "paused" in text)
    assert bundle["text/plain"].splitlines() == [
        "[0-3] step 1",
        "⏸ run 12 is paused · %dist continue resumes it · %%dist cells run in the paused frames",
        "  [0,2-3] train_step, line 8: loss.backward()",
        "  [1]     <cell>, line 4: if torch.isnan(loss): breakpoint()",
        "run 12 · 0 of 4 ranks done · 0 s · paused on ranks 0-3",
    ]
    assert "[0,2-3] train_step, line 8" in bundle["text/html"]
    assert bundle[MIME]["paused"] == [
        {
            "ranks": "0,2-3",
            "reason": "request",
            "function": "train_step",
            "line": 8,
            "source": "loss.backward()",
            "of_run": 12,
        },
        {
            "ranks": "1",
            "reason": "breakpoint",
            "function": "<cell>",
            "line": 4,
            "source": "if torch.isnan(loss): breakpoint()",
            "of_run": 12,
        },
    ]
    run.feed(RanksResumed(12, (0, 1, 2, 3)))
    run.feed(Output(12, (Text((0, 1, 2, 3), "stdout", "step 2\n"),)))
    text = screen.until(lambda text: "step 2" in text)["text/plain"]
    assert "⏸" not in text
    assert text.count("step 1") == 1
    for message in paused(1):
        run.feed(message)
    text = screen.until(lambda text: "⏸" in text)["text/plain"]
    assert "[0,2-3] not paused; %dist where shows what they do" in text
    assert "running on ranks 0,2-3 · paused on rank 1" in text
    end(run)
    assert screen.until(lambda text: "run 12 · 4 ranks · 1.0 s" in text)


def test_some_paused_ranks_are_enough_after_a_moment(run: CellRun) -> None:
    screen = Screen(is_live=True)
    for message in paused(2):
        run.feed(message)
    assert displayed(run, screen).follow(until_paused=True) is False
    assert screen.until(lambda text: "[2]     train_step, line 8" in text)
    end(run)
    screen.until(lambda text: "run 12 · 4 ranks" in text)


def test_a_terminal_shows_a_line_once_that_ranks_print_one_after_the_other(run: CellRun) -> None:
    screen = Screen(is_live=False)
    for rank in (2, 0, 3, 1):
        run.feed(Output(12, (Text((rank,), "stdout", f"loaded\nrank {'even' if rank % 2 == 0 else 'odd'}\n"),)))
        run.feed(Output(12, (Display((rank,), {"text/plain": "6"}, is_result=True),)))
    end(run)
    assert displayed(run, screen).follow()
    shown = [screen.shown.get_nowait()["text/plain"] for _ in range(screen.shown.qsize())]
    assert sorted(shown[:5]) == ["[0,2] rank even", "[0-3] 6", "[0-3] loaded", "[0-3] step 1", "[1,3] rank odd"]
    assert shown[:2] == ["[0-3] step 1", "[0-3] loaded"]
    assert shown[4:] == ["[0-3] 6", "run 12 · 4 ranks · 1.0 s"]


def test_a_terminal_gets_a_line_for_each_pause_that_no_verb_has_told(run: CellRun) -> None:
    screen = Screen(is_live=False)
    for message in paused(0, 1, 2, 3, reason="breakpoint"):
        run.feed(message)
    assert displayed(run, screen).follow(until_paused=True) is False
    assert screen.until(lambda text: "[0-3] train_step, line 8: loss.backward()" in text)
    run.feed(RanksResumed(12, (0, 1, 2, 3), "step"))
    for message in paused(0, 1, 2, 3, at=CHECK, reason="step"):
        run.feed(message)
    run.feed(Output(12, (Text((0,), "stdout", "a line\n"),)))
    assert screen.shown.get(timeout=DEADLINE)["text/plain"] == "[0] a line"
    end(run)
    screen.until(lambda text: "run 12 · 4 ranks" in text)


def test_a_terminal_shows_bars_while_they_move_and_nothing_of_them_at_the_end(
    run: CellRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bars are written over. At the end, each is one line."""
    terminal = Terminal(until="\n[0-3]  40%|████      | 4/10 [00:04<00:05]\nrun 12 · 0 of 4 ranks done")
    monkeypatch.setattr(sys, "stdout", terminal)
    follower = threading.Thread(target=displayed(run, TerminalScreen(is_terminal=True)).follow, daemon=True)
    follower.start()
    for tenth in range(5):
        for ranks in ((0, 1), (2, 3)):
            text = f"\r {tenth}0%|{'█' * tenth:10}| {tenth}/10 [00:0{tenth}<00:0{9 - tenth}]"
            run.feed(Output(12, (Text(ranks, "stderr", text),)))
    assert terminal.is_seen.wait(DEADLINE), terminal.getvalue()
    run.feed(Output(12, (Text((0, 1, 2, 3), "stderr", "\rover\x1b[K\n"),)))
    end(run)
    follower.join(DEADLINE)
    assert terminal.lines == ["[0-3] step 1", "[0-3] over", "run 12 · 4 ranks · 1.0 s"]


def logged(rank: int, *values: float) -> Message:
    """What a rank logs first."""
    buffer = MetricBuffer(rank)
    buffer.begin(12)
    for value in values:
        buffer.add(None, {"loss": value})
    return MetricsLogged(12, tuple(buffer.take()[1]))


def test_what_ranks_log_is_a_chart_below_the_output_while_the_run_goes_on(run: CellRun) -> None:
    screen = Screen(is_live=True)
    run.feed(logged(0, 1.0))
    display = displayed(run, screen)
    display.follow_in_background()
    first = screen.shown.get(timeout=DEADLINE)
    assert MIME in first, "the output stands first, although nothing was printed"
    chart = screen.until(lambda text: text.startswith("metrics of run 12 · 1 name · 1 rank · 1 point"))
    assert chart[METRICS]["charts"][0]["mean"] == [1.0]
    run.feed(logged(1, 3.0))
    chart = screen.until(lambda text: text.startswith("metrics of run 12 · 1 name · 2 ranks"))
    assert chart[METRICS]["charts"][0]["mean"] == [2.0]
    run.feed(logged(2, 8.0))
    end(run)
    chart = screen.until(lambda text: "3 ranks" in text)
    assert chart[METRICS]["charts"][0]["mean"] == [4.0], "the newest is shown at the end at once"


def test_a_screen_of_lines_shows_the_numbers_at_the_end(run: CellRun) -> None:
    screen = Screen(is_live=False)
    run.feed(logged(0, 1.0))
    run.feed(logged(1, 3.0))
    end(run)
    assert displayed(run, screen).follow() is True
    shown = screen.until(lambda text: text.startswith("metrics of run 12"))
    assert list(shown) == ["text/plain"]
    assert "loss     0     2       1        3      2" in shown["text/plain"]
    assert screen.shown.empty()


def test_points_that_come_after_the_end_are_shown_as_well(run: CellRun) -> None:
    screen = Screen(is_live=True)
    end(run)
    assert displayed(run, screen).follow() is True

    async def feed() -> Bundle:
        run.feed(logged(0, 1.0))
        return await asyncio.to_thread(screen.until, lambda text: text.startswith("metrics of run 12"))

    assert "1 rank" in asyncio.run(feed())["text/plain"]
