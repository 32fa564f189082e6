"""Progress of starts and transfers: one line, changed at most twice a second, that ends by saying what was done."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.core.messages.status import ClusterFacts
from jdist.notebook.output import progress
from jdist.notebook.output.progress import StartProgress, TransferProgress, start_part
from jdist.notebook.output.screen import Bundle, Update


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Board:
    """A screen on which things are replaced."""

    def __init__(self, *, is_live: bool = True) -> None:
        self.is_live = is_live
        self.lines: list[str] = []
        self.htmls: list[str] = []
        self.changes = 0

    def show(self, bundle: Bundle) -> Update:
        self.lines.append("")
        self.htmls.append("")
        line = Line(self, len(self.lines) - 1)
        line.update(bundle)
        return line.update

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError("nobody is asked")


class Line:
    def __init__(self, board: Board, at: int) -> None:
        self.board, self.at = board, at

    def update(self, bundle: Bundle) -> None:
        self.board.lines[self.at] = bundle["text/plain"]
        self.board.htmls[self.at] = bundle.get("text/html", "")
        self.board.changes += 1


def moving(board: Board) -> tuple[TransferProgress, Clock]:
    clock = Clock()
    return TransferProgress(board, clock), clock


def test_a_large_transfer_has_one_line_that_changes_at_most_twice_a_second() -> None:
    board = Board()
    line, clock = moving(board)
    with line:
        for step in range(1, 81):
            clock.now += 0.125
            line.update("w", step * 12_500_000, 1_000_000_000)
            if step == 40:
                assert board.lines == ["w ━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌ 50 % · 500 MB of 1.0 GB · 100 MB/s · 5 s left"]
                assert '<progress value="50" max="100" aria-label="w"' in board.htmls[0]
        assert board.changes <= 20
        line.finish("pushed w to ranks 0-3")
    assert board.lines == ["pushed w to ranks 0-3 · 1.0 GB in 10.0 s · 100 MB/s"]


def test_a_short_one_shows_nothing_but_its_end() -> None:
    board = Board()
    line, clock = moving(board)
    with line:
        clock.now += 0.3
        line.update("w", 900, 1000)
        line.finish("pulled w")
    assert (board.lines, board.changes) == (["pulled w"], 1)


def test_where_nothing_can_be_replaced_there_is_one_line_in_the_end() -> None:
    board = Board(is_live=False)
    line, clock = moving(board)
    with line:
        clock.now += 5
        line.update("w", 500, 1000)
        line.finish("pulled w")
    assert board.lines == ["pulled w"]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    board = Board()
    line, clock = moving(board)
    done = 0
    for rate in [100e6] * 10 + [10e6] * 10:
        clock.now += 1
        done += int(rate)
        line.update("w", done, 2_000_000_000)
    assert "10.0 MB/s" in board.lines[0]
    assert "1 min 30 s left" in board.lines[0]


def test_one_that_fails_says_how_far_it_came() -> None:
    board = Board()
    line, clock = moving(board)
    with pytest.raises(RuntimeError), line:
        clock.now += 2
        line.update("w", 400_000_000, 1_000_000_000)
        raise RuntimeError
    assert board.lines == ["stopped at 400 MB of 1.0 GB"]
    line.update("w", 500_000_000, 1_000_000_000)
    assert board.lines == ["stopped at 400 MB of 1.0 GB"], "what comes late changes nothing"


def test_parts_that_are_moved_one_after_another_are_summed_up() -> None:
    board = Board()
    line, clock = moving(board)
    for _ in range(3):
        for done in (0, 50_000_000, 100_000_000):
            clock.now += 0.5
            line.update("w", done, 100_000_000)
    line.finish("scattered w")
    assert board.lines[0].startswith("scattered w · 300 MB in 4.5 s")


@pytest.mark.parametrize("part", [-1, 0, 0.3, 1, 7])
def test_a_bar_has_always_the_same_width(part: float) -> None:
    assert len(progress.bar(part)) == 24


# ---------------------------------------------------------------- starts


def facts(phase: Any, ready: int = 0, nodes: tuple[int, ...] = (2, 2)) -> ClusterFacts:
    return ClusterFacts(
        "lab", phase, 1, "gloo", 2, nodes, tuple("ab"[n] if c else "" for n, c in enumerate(nodes)), ready
    )


def test_the_part_of_a_start_grows() -> None:
    steps = [
        facts("gathering", 0, (0, 0)),
        facts("gathering", 0, (2, 0)),
        facts("gathering", 1, (2, 0)),
        facts("gathering", 2, (2, 2)),
        facts("gathering", 4),
        facts("forming", 4),
        facts("ready", 4),
    ]
    parts = [start_part(step) for step in steps]
    assert parts == sorted(parts)
    assert len(set(parts)) == len(parts)
    assert (parts[0], parts[-1]) == (0.0, 1.0)


def test_a_start_has_one_line() -> None:
    board, clock = Board(), Clock()
    line = StartProgress(board, 30.0, clock)
    for step in range(40):
        clock.now += 0.1
        line.update(facts("gathering", 0, (2, 0)), f"job {step // 20} <waits>")
    assert board.changes <= 9
    assert board.lines[0].startswith("starting ━━╌╌")
    assert "missing: node 1" in board.lines[0]
    assert "waiting up to 30 s" in board.lines[0]
    assert "&lt;waits&gt;" in board.htmls[0]
    line.finish(facts("ready", 4), 4.2)
    assert board.lines == ["cluster lab: 4 ranks on 2 nodes (a, b) · gloo · ready in 4.2 s"]


def test_a_start_elsewhere_shows_what_is_to_be_done_before_anything_is_known_of_it() -> None:
    clock, board = Clock(), Board()
    line = StartProgress(board, None, clock)
    clock.now += 3.0
    line.update(None, "run this on each node:\necho x | jdist join -")
    assert board.lines == [f"starting {'╌' * 24} 3 s\nrun this on each node:\necho x | jdist join -"]
    line.finish(facts("ready", 4), 4.2)
    assert len(board.lines) == 1


def test_a_start_that_cannot_be_replaced_is_said_in_the_end() -> None:
    board = Board(is_live=False)
    line = StartProgress(board, None)
    line.update(facts("gathering"), "")
    line.finish(facts("ready", 4), 4.2)
    assert len(board.lines) == 1
