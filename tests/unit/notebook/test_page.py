"""What a page is told of the notebook's cluster, and when."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jdist.core.errors import ConnectionLost, UsageError
from jdist.core.messages.status import Stopped
from jdist.notebook import page
from jdist.notebook.page import ClusterComm, missing_extension
from jdist.notebook.session import Session


class RecordedComm:
    """A comm that notes what is sent, and what a page can call."""

    def __init__(self, target_name: str, data: dict[str, Any]) -> None:
        self.target = target_name
        self.sent = [data["cluster"]]
        self.ids = [data["id"]]
        self.autos = [data["is_auto"]]
        self.is_closed = False

    def send(self, data: dict[str, Any]) -> None:
        self.sent.append(data["cluster"])
        self.ids.append(data["id"])
        self.autos.append(data["is_auto"])

    def close(self) -> None:
        self.is_closed = True

    def on_msg(self, callback: Any) -> None:
        self.ask = callback

    def on_close(self, callback: Any) -> None:
        self.refuse = callback


class NamedCluster:
    """As much of a cluster as a session needs."""

    def __init__(self, name: str, cluster: str = "") -> None:
        self.name = name
        self.id = cluster or name
        self.asynchronous = self.link = self
        self.lost = ""
        self.is_orphaned = False
        self.remedies = ()

    def watch(self, watcher: Any) -> Any:
        self.notify = watcher
        return lambda: None

    @property
    def is_sound(self) -> bool:
        return not self.lost

    def revived(self) -> None:
        pass

    def loss(self) -> ConnectionLost:
        return ConnectionLost(self.lost)

    def end(self, *, is_orphaned: bool = False) -> None:
        self.lost, self.is_orphaned = "it has ended", is_orphaned
        self.notify(Stopped(self.lost))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RecordedComm]:
    """The comms that were opened."""
    comms: list[RecordedComm] = []

    def create_comm(**options: Any) -> RecordedComm:
        comms.append(RecordedComm(**options))
        return comms[-1]

    monkeypatch.setattr("comm.create_comm", create_comm)
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
    assert [comm.sent for comm in opened] == [["a"], [None, "b"]]  # pages with the extension still hear of it


def test_clusters_of_the_same_name_are_told_apart(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    session.use(NamedCluster("c1", "first"))
    session.use(None)
    session.use(NamedCluster("c1", "second"))
    assert opened[0].ids == ["first", None, "second"]


def test_where_plain_cells_run_is_told(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    session.use(NamedCluster("a"))
    session.set_auto(True)
    session.set_auto(False)
    assert opened[0].autos == [False, True, False]


def test_a_cluster_that_ends_by_itself_is_withdrawn(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    session.use(cluster := NamedCluster("a"))
    cluster.end()
    assert opened[0].sent == ["a", None]
    opened[0].ask({})
    assert opened[0].sent[-1] is None


def test_a_cluster_whose_controller_may_come_back_is_kept(opened: list[RecordedComm], session: Any) -> None:
    ClusterComm(session)
    session.use(cluster := NamedCluster("a"))
    cluster.end(is_orphaned=True)
    assert opened[0].sent == ["a"]
    with pytest.raises(UsageError):
        _ = session.cluster  # it has not come back
    assert opened[0].sent == ["a", None]


def test_nothing_is_told_once_it_is_closed(opened: list[RecordedComm], session: Any) -> None:
    told = ClusterComm(session)
    session.use(NamedCluster("a"))
    told.close()
    session.use(NamedCluster("b"))
    assert [(comm.sent, comm.is_closed) for comm in opened] == [(["a"], True)]


@pytest.fixture
def lab_without_extension(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This is a kernel that a Jupyter server has started beside a JupyterLab, whose folder of extensions is empty."""
    monkeypatch.setenv("JPY_SESSION_NAME", "/a.ipynb")
    monkeypatch.setattr(page, "find_spec", lambda name: name == "jupyterlab" or None)
    monkeypatch.setattr(page, "jupyter_path", lambda *_: [str(tmp_path)])
    monkeypatch.setattr(psutil.Process, "environ", lambda self: {"PATH": "/bin"} if self.pid == os.getppid() else {})
    return tmp_path


def came_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(page, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, f"jdist=={page.__version__}"),
        ({"url": "file:///src/jdist", "dir_info": {}}, "file:///src/jdist"),
        ({"url": "https://x/jdist", "vcs_info": {"vcs": "git", "commit_id": "abc"}}, "git+https://x/jdist@abc"),
    ],
)
def test_a_kernel_beside_a_lab_without_the_extension_says_how_it_is_installed(
    lab_without_extension: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, line: str
) -> None:
    came_from(monkeypatch, origin)
    said = missing_extension()
    assert "lacks jdist's extension" in said
    assert said.endswith(f": pip install --force-reinstall --no-deps --no-cache-dir {line}")


def test_the_extension_of_an_editable_installation_is_linked(
    lab_without_extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_from(monkeypatch, {"url": "file:///x", "dir_info": {"editable": True}})
    tree = Path(page.__file__).parents[2]
    assert missing_extension().endswith(
        f"pip install --no-deps -e {tree} && jupyter-builder develop --overwrite {tree}"
    )


def test_nothing_is_said_where_the_extension_is(lab_without_extension: Path) -> None:
    assert missing_extension()
    (lab_without_extension / "jdist").mkdir()
    (lab_without_extension / "jdist" / "package.json").touch()
    assert missing_extension() == ""


def test_nothing_is_said_where_no_jupyterlab_is(lab_without_extension: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda _: None)
    assert missing_extension() == ""


def test_nothing_is_said_to_a_kernel_without_a_server(
    lab_without_extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert missing_extension() == ""


def test_nothing_is_said_to_a_kernel_that_a_notebook_has_started(
    lab_without_extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``!papermill``, which passes its environment on."""
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {"JPY_SESSION_NAME": "/a.ipynb"})
    assert missing_extension() == ""
