"""The panel's one cluster, also when a cell and the client's loop change it at once."""

import threading
from types import SimpleNamespace
from typing import Any

import ipywidgets
import pytest

from jdist.notebook import panel
from jdist.notebook.panel import Panel

BOTH = 60.0  # Seconds for both threads to end.
OVERLAP = 0.3  # Seconds for which the first waits for the second to pass it.


class FakeClusterPanel:
    """Waits while it is made, if it is the first one, for the second to be opened."""

    made: list["FakeClusterPanel"]
    first_is_made: threading.Event
    second_is_open: threading.Event

    def __init__(self, *_: object):
        self.widget = ipywidgets.VBox()
        self.is_open = False
        self.made.append(self)
        if len(self.made) == 1:
            self.first_is_made.set()
            self.second_is_open.wait(OVERLAP)

    def open(self) -> None:
        self.is_open = True
        if len(self.made) == 2:
            self.second_is_open.set()

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClusterPanel]:
    FakeClusterPanel.made = []
    FakeClusterPanel.first_is_made, FakeClusterPanel.second_is_open = threading.Event(), threading.Event()
    monkeypatch.setattr(panel, "ClusterPanel", FakeClusterPanel)
    return FakeClusterPanel


class FakeSession:
    """A session whose cluster a test changes by ``use``."""

    def use(self, cluster: Any) -> None:
        self._follower(cluster)

    def follow(self, follower: Any) -> Any:
        self._follower = follower
        return lambda: None


def test_of_two_clusters_used_at_once_one_is_followed(fake: type[FakeClusterPanel]) -> None:
    session: Any = FakeSession()
    shown = Panel(SimpleNamespace(), None, session)
    first, second = (threading.Thread(target=session.use, args=(name,)) for name in ("a", "b"))
    first.start()
    assert fake.first_is_made.wait(BOTH)
    second.start()
    for thread in (first, second):
        thread.join(BOTH)
    (followed,) = [each for each in fake.made if each.is_open]
    assert shown.widget.children == (followed.widget,)
    shown.close()
    assert not followed.is_open


def test_a_closed_panel_follows_no_further_cluster(fake: type[FakeClusterPanel]) -> None:
    session: Any = FakeSession()
    Panel(SimpleNamespace(), None, session).close()
    session.use("a")
    assert fake.made == []
