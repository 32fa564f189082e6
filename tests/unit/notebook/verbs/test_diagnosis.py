"""%dist trace: shows the picture, saves the file; the words that it understands."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.client.measure.columns import MIME
from jdist.client.measure.trace import Trace, assemble
from jdist.core.messages.observation import Call, RankTrace
from jdist.core.messages.status import ClusterFacts
from jdist.notebook.output.screen import Bundle
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import call


class Screen:
    is_live = False

    def __init__(self) -> None:
        self.shown: list[Bundle] = []

    def show(self, bundle: Bundle) -> Any:
        self.shown.append(bundle)

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError(prompt)


class Cluster:
    """One rank that was in run 3."""

    name = "c"
    id = "c-1"

    def __init__(self) -> None:
        self.asynchronous = SimpleNamespace(link=SimpleNamespace(lost="", is_sound=True), watch=lambda _: lambda: None)
        self.asked: list[int] = []

    def trace(self, run: int = 0) -> Trace:
        self.asked.append(run)
        calls = (Call("barrier", "0", 1, started=1.0, ended=2.0, is_done=True),)
        facts = ClusterFacts("c1", "ready", 1, "gloo", 1, (1,), ("a",), 1)
        return assemble({0: RankTrace(3, calls, 0.0, 3.0, 4.0)}, {0: (4.0, 4.0)}, {}, facts, run)


@pytest.fixture
def session() -> Session:
    session = Session(Screen(), {}, "notebook")
    session.use(Cluster())  # type: ignore[arg-type]
    return session


def test_it_shows_the_last_run(session: Session) -> None:
    call(session, "trace", [])
    assert session.cluster.asked == [0]  # type: ignore[attr-defined]
    (shown,) = session.screen.shown  # type: ignore[attr-defined]
    assert "run 3 · 1 rank" in shown["text/plain"]
    assert "<svg " in shown["text/html"]
    drawn = shown[MIME]
    assert (drawn["cluster"], drawn["run"], drawn["rows"][0]["calls"]) == ("c", 3, 1)


def test_it_saves(session: Session, tmp_path: Path) -> None:
    call(session, "trace", ["--run", "3", "--save", str(tmp_path / "t.json")])
    assert session.cluster.asked == [3]  # type: ignore[attr-defined]
    names = [e["name"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
    assert "barrier" in names
    assert str(tmp_path / "t.json") in session.screen.shown[-1]["text/plain"]  # type: ignore[attr-defined]


def test_it_tells_how_it_is_used(session: Session) -> None:
    call(session, "trace", ["--help"])
    assert "--save FILE" in session.screen.shown[0]["text/plain"]  # type: ignore[attr-defined]
