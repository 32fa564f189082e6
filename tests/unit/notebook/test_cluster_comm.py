"""What a page is told of the notebook's cluster, and when."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.notebook import cluster_comm
from jdist.notebook.cluster_comm import ClusterComm
from jdist.notebook.session import Session


class RecordedComm:
    """A comm that notes what is sent, and what a page can call."""

    def __init__(self, target_name: str, data: dict[str, Any]) -> None:
        self.target = target_name
        self.sent = [data["cluster"]]
        self.is_closed = False

    def send(self, data: dict[str, Any]) -> None:
        self.sent.append(data["cluster"])

    def close(self) -> None:
        self.is_closed = True

    def on_msg(self, callback: Any) -> None:
        self.ask = callback

    def on_close(self, callback: Any) -> None:
        self.refuse = callback


class NamedCluster:
    """As much of a cluster as a session needs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asynchronous = self

    def watch(self, _: Any) -> Any:
        return lambda: None


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RecordedComm]:
    """The comms that were opened."""
    comms: list[RecordedComm] = []

    def create_comm(**options: Any) -> RecordedComm:
        comms.append(RecordedComm(**options))
        return comms[-1]

    monkeypatch.setattr(cluster_comm, "create_comm", create_comm)
    return comms


@pytest.fixture
def session() -> Any:
    screen: Any = None
    return Session(screen, {}, "notebook")


def test_a_change_of_the_cluster_is_told(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    assert not opened  # a page that knows no such comm is left alone until there is something to tell
    session.use(NamedCluster("a"))
    session.use(None)
    session.use(NamedCluster("b"))
    assert [(comm.target, comm.sent) for comm in opened] == [("jdist", ["a", None, "b"])]


def test_a_page_that_asks_is_answered(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    session.use(NamedCluster("a"))
    opened[0].ask({})
    assert opened[0].sent == ["a", "a"]


def test_a_page_that_does_not_know_it_closes_it(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    session.use(NamedCluster("a"))
    opened[0].refuse({})
    session.use(None)
    session.use(NamedCluster("b"))
    assert [comm.sent for comm in opened] == [["a"], ["b"]]


def test_nothing_is_told_once_it_is_closed(opened: list[RecordedComm], session: Any) -> None:
    told = ClusterComm(session)
    session.use(NamedCluster("a"))
    told.close()
    session.use(NamedCluster("b"))
    assert [(comm.sent, comm.is_closed) for comm in opened] == [(["a"], True)]
