"""Earlier clusters: which ones an earlier kernel of this notebook has left, and what a start does with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from jdist.client import find
from jdist.client.lifecycle import lifecycle as earlier_module
from jdist.client.lifecycle.lifecycle import KEEP, ClusterLifecycle, end_earlier, is_same_start, keeps
from jdist.client.lifecycle.start import Progress, complete, make_settings
from jdist.core.errors import LaunchError
from jdist.core.messages.status import ClusterFacts, Origin, StatusReport
from jdist.core.settings import Settings
from jdist.wire.transport.keys import Charter, Connection, KeyPair

HERE = Origin("/a/train.ipynb", "/a", "host", 20)
BEFORE = replace(HERE, pid=10)
LIVES = 11
KEYS = KeyPair.make()
FACTS = ClusterFacts("c1", "ready", 1, "gloo", 1, (2,), ("host",), 2)
IDLE = StatusReport("r", FACTS, (), (), clients=("start",))
BUSY = StatusReport("r", FACTS, (), ((7, "running", (0, 1), 3.0),), clients=("start",))
SHARED = StatusReport("r", FACTS, (), (), clients=("start", "notebook"))


def started(name: str = "c1", nproc: int = 2, **options: Any) -> Settings:
    """The settings with which a cluster runs."""
    return complete(make_settings(nproc, None, name, **options))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (BEFORE, True),
        (replace(BEFORE, directory="/b"), True),
        (replace(BEFORE, notebook="/a/other.ipynb"), False),
        (replace(BEFORE, notebook=""), False),
        (replace(BEFORE, hostname="elsewhere"), False),
    ],
)
def test_a_notebook_is_known_by_its_name(other: Origin, is_same: bool) -> None:
    assert HERE.is_of_same_notebook(other) == is_same


def test_a_notebook_without_a_name_is_known_by_its_directory() -> None:
    nameless = replace(HERE, notebook="")
    assert nameless.is_of_same_notebook(replace(BEFORE, notebook=""))
    assert not nameless.is_of_same_notebook(replace(BEFORE, notebook="", directory="/b"))


@pytest.mark.parametrize(
    ("new", "old", "is_named", "is_same"),
    [
        (make_settings(2, None, "c9"), started("c1"), False, True),
        (make_settings("2", None, "c9"), started("c1"), False, True),
        (make_settings(2, None, "c9"), started("mine"), False, False),
        (make_settings(2, None, "mine"), started("mine"), True, True),
        (make_settings(2, None, "other"), started("mine"), True, False),
        (make_settings(3, None, "c9"), started("c1"), False, False),
        (make_settings(2, 2, "c9"), started("c1"), False, False),
        (make_settings(2, None, "c9", env={"A": "1"}), started("c1"), False, False),
        (make_settings(2, None, "c9", on_death="stop"), started("c1"), False, False),
    ],
)
def test_the_same_options(new: Settings, old: Settings, is_named: bool, is_same: bool) -> None:
    assert is_same_start(new, old, is_named=is_named) == is_same


@pytest.mark.parametrize(
    ("keep", "variable", "kept"),
    [(None, "", False), (None, "1", True), (None, "0", False), (True, "", True), (False, "1", False)],
)
def test_the_environment_has_the_default(
    keep: bool | None, variable: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEEP, variable)
    assert keeps(keep) == kept


class Ended(ClusterLifecycle):
    """The attachment to an earlier cluster; notes how it ends."""

    ends: list[str]
    report: StatusReport | Exception

    async def attach(self, name: str, kind: str) -> None:  # type: ignore[override]
        if isinstance(self.report, Exception):
            raise self.report

        class Answers:
            async def request(self, *_: object) -> object:
                return Ended.report

        self._attachment.current = Answers()  # type: ignore[assignment]

    async def stop(self, *, now: bool = False) -> None:
        assert not now, "its exit functions run"
        self.ends.append("stopped")

    async def detach(self) -> None:
        self.ends.append("detached")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], list[str]]]:
    """A start beside an earlier cluster: how that ended, and what the user is told."""

    def play(
        origin: Origin | None, report: StatusReport | Exception = IDLE, old: Settings | None = None, **options: Any
    ) -> tuple[list[str], list[str]]:
        old = old or started()
        connection = Connection("c1", "0" * 12, "127.0.0.1", 1, 1, KEYS.public, KEYS, 1, "1")
        charter = Charter(old, connection.cluster, "1", "host", "", 1, 1, KEYS, KEYS, origin=origin)
        monkeypatch.setattr(find, "connections", lambda: {"c1": connection})
        monkeypatch.setattr(find, "restartable", dict)
        monkeypatch.setattr(find, "charter_of", lambda _: charter)
        monkeypatch.setattr(earlier_module, "this_notebook", lambda: options.pop("own", HERE))
        monkeypatch.setattr(earlier_module, "has_ended", lambda pid, _started: pid != LIVES)
        monkeypatch.setattr(earlier_module, "ClusterLifecycle", Ended)
        Ended.ends, Ended.report = [], report
        told: list[Progress] = []
        asyncio.run(end_earlier(make_settings(2, None, "c9"), told.append, is_named=False, keep=options.get("keep")))
        return Ended.ends, [str(each) for each in told]

    return play


def test_an_idle_one_is_stopped(start: Callable[..., tuple[list[str], list[str]]]) -> None:
    ends, (told,) = start(BEFORE)
    assert ends[0] == "stopped"
    assert "cluster c1 of an earlier kernel of this notebook was idle and has been stopped" in told
    assert "--keep" in told


@pytest.mark.parametrize(
    ("origin", "report", "why"),
    [
        (BEFORE, BUSY, "run 7 is running on ranks 0-1"),
        (BEFORE, SHARED, "1 other client is attached"),
        (replace(BEFORE, is_shared=True), IDLE, "another program has used it"),
    ],
)
def test_one_that_is_in_use_is_left(
    start: Callable[..., tuple[list[str], list[str]]], origin: Origin, report: StatusReport, why: str
) -> None:
    ends, (told,) = start(origin, report)
    assert set(ends) == {"detached"}
    assert why in told
    assert "stop c1" in told


@pytest.mark.parametrize("origin", [None, HERE, replace(BEFORE, pid=LIVES), replace(BEFORE, notebook="/a/other.ipynb")])
def test_what_no_earlier_kernel_of_this_notebook_left_is_not_touched(
    start: Callable[..., tuple[list[str], list[str]]], origin: Origin | None
) -> None:
    assert start(origin) == ([], [])


def test_one_with_other_options_is_only_named(start: Callable[..., tuple[list[str], list[str]]]) -> None:
    ends, (told,) = start(BEFORE, old=started(nproc=4))
    assert not ends
    assert "other options" in told


def test_one_that_does_not_answer_is_left(start: Callable[..., tuple[list[str], list[str]]]) -> None:
    ends, (told,) = start(BEFORE, LaunchError("no answer"))
    assert ends == ["detached"]
    assert "no answer" in told


def test_who_keeps_them_is_told_nothing(start: Callable[..., tuple[list[str], list[str]]]) -> None:
    assert start(BEFORE, keep=True) == ([], [])


def test_a_program_that_is_no_notebook_touches_none(start: Callable[..., tuple[list[str], list[str]]]) -> None:
    assert start(BEFORE, own=None) == ([], [])
