"""The panel with a real cluster: what it sees and when it looks, and what its buttons do. No browser, no kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import jdist
from jdist.client.threads import bridge
from jdist.notebook.panel import ClusterPanel, PanelFollower, Sight
from support.waits import eventually

LONG = 60.0
SLEEP = "import time\nfor _ in range(600): time.sleep(0.1)"


class Watcher:
    """A follower, and what it has shown."""

    def __init__(self, cluster: jdist.Cluster):
        self.sights: list[Sight] = []
        self.at: list[float] = []
        self.follower: PanelFollower

        async def begin() -> None:
            self.follower = PanelFollower(cluster.asynchronous, self._show)

        bridge().call(begin())

    def _show(self, sight: Sight) -> None:
        self.sights.append(sight)
        self.at.append(time.monotonic())

    def until(self, is_it: Callable[[Sight], Any]) -> Sight:
        assert eventually(lambda: self.sights and is_it(self.sights[-1]), LONG), self.sights[-1:]
        return self.sights[-1]

    def close(self) -> None:
        bridge().call(self.follower.close())


@pytest.fixture
def watcher(cluster: jdist.Cluster) -> Iterator[Watcher]:
    watcher = Watcher(cluster)
    yield watcher
    watcher.close()


def test_it_looks_while_cells_run_and_then_no_more(cluster: jdist.Cluster, watcher: Watcher) -> None:
    idle = watcher.until(lambda sight: sight.state == "watching")
    assert idle.found is not None
    assert [row.state for row in idle.found.ranks] == ["idle"] * 4
    assert set(idle.looked) == {0, 1, 2, 3}
    run = cluster.run_async(SLEEP)
    watcher.until(
        lambda sight: (
            sight.state == "live"
            and 2 in sight.looked
            and sight.looked[2].run == run.number
            and (sight.looked[2].doing.op == "sleep" or sight.looked[2].doing.line == 2)
        )
    )
    seen = len(watcher.sights)
    assert eventually(lambda: len(watcher.sights) > seen + 1, LONG)  # the seconds go on
    cluster.interrupt()
    run.wait()
    watcher.until(lambda sight: sight.state == "watching" and not sight.found.runs)
    gaps = [b - a for a, b in zip(watcher.at[1:], watcher.at[2:], strict=False)]
    assert all(gap > 0.45 for gap in gaps), gaps


def test_nothing_is_asked_while_nothing_happens(cluster: jdist.Cluster, watcher: Watcher) -> None:
    watcher.until(lambda sight: sight.state == "watching")
    link = watcher.follower.observer.link
    sent: list[object] = []
    original = link.send
    link.send = lambda message: (sent.append(message), original(message))
    seen = len(watcher.sights)
    time.sleep(1.6)  # three times what lies between two looks
    assert not sent
    assert len(watcher.sights) == seen
    cluster.run("1")
    assert eventually(lambda: sent, LONG)


def test_a_cluster_that_is_stopped_is_said_to_be_gone(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(1)
    watcher = Watcher(cluster)
    watcher.until(lambda sight: sight.state == "watching")
    cluster.stop()
    gone = watcher.until(lambda sight: sight.state == "gone")
    assert cluster.name in gone.note
    assert gone.found is not None, "what was known last is still shown"
    watcher.close()


# ---------------------------------------------------------------- the board


@contextmanager
def opened(cluster: jdist.Cluster) -> Iterator[ClusterPanel]:
    board = ClusterPanel(cluster, SimpleNamespace())
    board.open()
    assert eventually(lambda: "idle" in board._header.value, LONG)
    yield board
    board.close()
    assert eventually(lambda: board._follower is None, LONG)


@pytest.fixture
def board(cluster: jdist.Cluster) -> Iterator[ClusterPanel]:
    with opened(cluster) as board:
        yield board


def press(board: ClusterPanel, name: str) -> None:
    """The button of that name, or that begins so."""

    def buttons(widget: Any) -> Iterator[Any]:
        if hasattr(widget, "click"):
            yield widget
        for child in getattr(widget, "children", ()):
            yield from buttons(child)

    found = [b for b in buttons(board.widget) if b.description.startswith(name)]
    assert found, [b.description for b in buttons(board.widget)]
    found[0].click()


def says(board: ClusterPanel, text: str) -> bool:
    return bool(eventually(lambda: text in board._message.value, LONG))


def test_interrupt_stops_what_runs_on_the_ranks_that_are_named(cluster: jdist.Cluster, board: ClusterPanel) -> None:
    press(board, "Interrupt")
    assert says(board, "nothing is running on ranks 0-3")
    run = cluster.run_async("x = rank\n" + SLEEP, ranks="1")
    assert eventually(lambda: "▶ running" in board._table.value, LONG)
    assert eventually(lambda: "time.sleep" in cluster.stack(1), LONG)
    board._ranks.value = "1"
    press(board, "Interrupt")
    assert run.wait(LONG)
    assert run.outcomes[1].kind == "interrupted"
    assert says(board, f"interrupting run {run.number}")
    assert cluster.run("x", ranks="1").values == {1: 1}
    assert "Here the buttons work only between cells" in board._warning.value, "this is no kernel with subshells"


def test_ranks_that_do_not_exist_are_named(board: ClusterPanel) -> None:
    board._ranks.value = "9"
    press(board, "Interrupt")
    assert says(board, "9")
    assert "✕" in board._message.value


def test_restart_asks_first(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2, 1)
    cluster.run("held = rank")
    pids = cluster.run("import os; os.getpid()").values
    with opened(cluster) as board:
        board._ranks.value = "1"
        press(board, "Restart …")
        assert board._confirmation.layout.display is None
        assert "What rank 1 holds will be lost" in board._question.value
        press(board, "Keep them")
        assert board._confirmation.layout.display == "none"
        press(board, "Restart …")
        board._ranks.value = "0"  # what is written after the question is not what was asked about
        press(board, "Restart them")
        assert says(board, "rank 1 is fresh")
        now = cluster.run("import os; os.getpid()").values
        assert {r for r in range(2) if now[r] != pids[r]} == {1}
        assert cluster.run("'held' in globals()").values == {0: True, 1: False}


def test_a_run_without_progress_is_explained_until_it_is_interrupted(
    cluster: jdist.Cluster, board: ClusterPanel
) -> None:
    run = cluster.run_async("if rank: dist.barrier()")
    assert eventually(lambda: "rank 0" in board._verdicts.value, LONG)
    assert "%dist interrupt" in board._verdicts.value
    press(board, "Interrupt")
    assert run.wait(LONG)
    assert run.outcomes[1].kind == "interrupted"
    assert eventually(lambda: not board._verdicts.value, LONG)


def test_ranks_are_paused_and_continued(cluster: jdist.Cluster, board: ClusterPanel) -> None:
    run = cluster.run_async("import time\nended = False\nwhile not ended: time.sleep(0.05)", ranks="1")
    assert eventually(lambda: board._pause.layout.display is None, LONG)
    assert eventually(lambda: "time.sleep" in cluster.stack(1), LONG)
    board._ranks.value = "1"
    press(board, "Pause")
    assert eventually(lambda: "⏸ paused" in board._table.value, LONG)
    assert eventually(lambda: board._continue.layout.display is None, LONG)
    cluster.run("ended = True", ranks="1")
    press(board, "Continue")
    assert run.wait(LONG)
    assert run.outcomes[1].ok


def test_the_actions_of_a_cluster_that_is_gone_are_not_offered(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2, 1)
    with opened(cluster) as board:
        cluster.run_async("if rank: dist.barrier()")
        assert eventually(lambda: "%dist interrupt" in board._verdicts.value, LONG)
        jdist.attach(cluster.name).stop()
        assert eventually(lambda: "%dist interrupt" not in board._verdicts.value, LONG)
        assert "rank 0" in board._verdicts.value, "the verdict is still shown"
