"""The debugger's verbs: what they ask of the cluster, and how they say where the ranks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jdist.client.debug import Places, Stacks
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, Stack
from jdist.core.messages.observation import StackFrame
from jdist.core.messages.status import ClusterFacts
from jdist.notebook.output.screen import Bundle
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import call

AT = StackFrame("train_step", "", 8, "loss.backward()", 12)
STACK = Stack((StackFrame("<cell>", "", 5, "train_step()", 12), AT), 1, 12, "request")


class Screen:
    is_live = True

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, bundle: Bundle) -> Any:
        self.texts.append(bundle["text/plain"])

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError(prompt)


class Cluster:
    """Two ranks that pause when they are asked, and what was asked of them."""

    name = "c"
    lost = ""
    is_sound = True

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.facts = ClusterFacts("c", "ready", 1, "gloo", 1, (2,), ("a",), 2)
        self.places = Places({0: RankPaused(12, 0, "request", AT, 0)}, {1: "in all_reduce #17; pause pending"})

    @property
    def asynchronous(self) -> Cluster:
        return self

    @property
    def link(self) -> Cluster:
        return self

    def watch(self, watcher: Callable[[Message], None]) -> Callable[[], None]:
        return lambda: None

    def select(self, ranks: str | None = None, group: str | None = None) -> tuple[int, ...]:
        return (0, 1) if ranks is None else tuple(map(int, ranks.split(",")))

    def select_paused(self, ranks: str | None = None, group: str | None = None) -> tuple[int, ...]:
        return self.facts.paused if ranks is None and self.facts.paused else self.select(ranks, group)

    def pause(self, ranks: Any) -> Places:
        self.asked.append(("pause", ranks))
        return self.places

    def resume(self, how: str, ranks: Any, *, line: int) -> Places:
        self.asked.append((how, ranks, line))
        return self.places

    def where(self, ranks: Any) -> Stacks:
        self.asked.append(("where", ranks))
        return Stacks({0: STACK, 1: STACK}, {})

    def up(self, frames: int, ranks: Any) -> Stacks:
        self.asked.append(("up", frames, ranks))
        return Stacks({0: STACK}, {})

    def stop_debugging(self, ranks: Any) -> None:
        self.asked.append(("stop_debugging", ranks))

    def debug(self, run: int, ranks: Any) -> Stacks:
        self.asked.append(("debug", run, ranks))
        return Stacks({1: STACK}, {})


@pytest.fixture
def cluster() -> Any:
    return Cluster()


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def session(cluster: Any, screen: Screen) -> Session:
    found = Session(screen, {}, "notebook")
    found.use(cluster)
    return found


@pytest.mark.parametrize(
    ("verb", "words", "asked"),
    [
        ("pause", [], ("pause", None)),
        ("pause", ["-r", "1"], ("pause", (1,))),
        ("continue", [], ("continue", None, 0)),
        ("step", ["-r", "0,1"], ("step", (0, 1), 0)),
        ("next", [], ("next", None, 0)),
        ("return", [], ("return", None, 0)),
        ("until", ["9"], ("until", None, 9)),
        ("next-call", [], ("next_call", None, 0)),
    ],
)
def test_the_answer_says_where_each_rank_is(
    session: Session, cluster: Cluster, screen: Screen, verb: str, words: list[str], asked: tuple[Any, ...]
) -> None:
    call(session, verb, words)
    assert cluster.asked == [asked]
    assert screen.texts == ["⏸ [0] train_step, line 8: loss.backward()\n▶ [1] in all_reduce #17; pause pending"]


def test_a_held_failure_that_goes_on_has_failed(session: Session, cluster: Cluster, screen: Screen) -> None:
    cluster.places = Places(
        {}, {0: "finished run 12", 1: "failed in run 12: ValueError: no such file"}, {0: "value", 1: "error"}
    )
    call(session, "continue", [])
    assert screen.texts == ["✓ [0] finished run 12\n✗ [1] failed in run 12: ValueError: no such file"]


def test_nothing_to_pause(session: Session, cluster: Cluster, screen: Screen) -> None:
    cluster.places = Places({}, {})
    call(session, "pause", [])
    assert screen.texts == ["nothing is running there"]
    cluster.places = Places({}, {0: "in all_reduce #17; pause pending", 1: "finished run 12"}, {1: "value"})
    call(session, "pause", [])
    assert screen.texts[1] == "▶ [0] in all_reduce #17; pause pending\n✓ [1] finished run 12"
    cluster.places = Places(
        {},
        {0: "finished run 12", 1: "failed in run 12", 2: "is no longer in run 12"},
        {0: "value", 1: "error", 2: None},
    )
    call(session, "continue", [])
    assert screen.texts[2] == "✓ [0] finished run 12\n✗ [1] failed in run 12\n■ [2] is no longer in run 12"


def test_stacks_are_drawn_under_their_run(session: Session, cluster: Cluster, screen: Screen) -> None:
    call(session, "where", [])
    call(session, "up", ["2"])
    assert cluster.asked == [("where", None), ("up", 2, None)]
    assert screen.texts[0].splitlines() == [
        "run 12 on ranks 0-1",
        "[0-1] <cell>, line 5: train_step()",
        "   train_step, line 8: loss.backward()  ◂ cells run here",
    ]


def test_cells_run_where_a_rank_failed_until_that_is_ended(session: Session, cluster: Any, screen: Screen) -> None:
    call(session, "debug", ["12"])
    assert cluster.asked == [("debug", 12, None)]
    assert screen.texts[0].startswith(
        "%%dist cells run where rank 1 failed; %dist debug off returns to normal\n[1] <cell>"
    )
    assert session.select_for_cell(None, None) == (1,)
    assert session.select_for_cell("0", None) == (0,)
    assert session.frames_of((1,)) == "in the frames that failed"
    call(session, "up", [])
    assert cluster.asked[-1] == ("up", 1, (1,))
    call(session, "debug", ["off"])
    assert cluster.asked[-1] == ("stop_debugging", (1,))
    call(session, "debug", ["off"])
    assert cluster.asked[-1] == ("stop_debugging", None)
    assert screen.texts[-2:] == ["cells use the ranks' own names again", "no failure is being debugged"]
    assert session.select_for_cell(None, None) == (0, 1)
    with pytest.raises(UsageError, match=r"expected the number of a run, or off"):
        call(session, "debug", ["last"])


def test_without_a_choice_cells_run_on_paused_ranks(session: Session, cluster: Any) -> None:
    cluster.facts = ClusterFacts("c", "ready", 1, "gloo", 1, (2,), ("a",), 2, paused=(0,))
    assert session.select_for_cell(None, None) == (0,)
    assert session.frames_of((0,)) == "in the paused frames"
    assert session.frames_of((0, 1)) == "in frames paused on rank 0"
    assert session.frames_of((1,)) == ""
