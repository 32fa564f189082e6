"""Start: the settings that arguments and environment make, and the nodes without which a start goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from jdist.client.lifecycle.start import Started, check_settings, launch, make_settings
from jdist.core.errors import LaunchError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.membership import DropNodes
from jdist.core.messages.status import ClusterFacts
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, LaunchPlan


@pytest.mark.parametrize(
    ("given", "own", "sent"),
    [("", None, ()), ("debug", None, (("JDIST_LOG", "debug"),)), ("debug", "info", (("JDIST_LOG", "info"),))],
)
def test_the_level_of_logging_travels_with_the_settings_to_every_launcher(
    given: str, own: str | None, sent: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDIST_LOG", given)
    settings = make_settings(2, 1, name="c", env=None if own is None else {"JDIST_LOG": own})
    assert settings.env == sent


GATHERING = ClusterFacts("c", "gathering", 0, "gloo", 3, (1, 1, 1), ("a", "b", ""), 0)


class ToController:
    """A link's end here: what it was asked for, and what the controller would say to it."""

    def __init__(self, hostnames: tuple[str, ...], generation: int = 0, refusal: str = ""):
        self.facts = msgspec.structs.replace(GATHERING, hostnames=hostnames, generation=generation)
        self.asked: list[DropNodes] = []
        self.refusal = refusal

    async def request(self, message: Message, expected: type, timeout: float = 0.0) -> None:
        assert isinstance(message, DropNodes)
        self.asked.append(message)
        if self.refusal:
            raise UsageError(self.refusal)


class Launched(Launcher):
    """What has been launched, and of which nothing is heard."""

    async def launch(self, join_line: Awaitable[str]) -> None:
        raise NotImplementedError

    def failures(self) -> dict[int, str]:
        return {}

    async def end(self) -> None:
        raise NotImplementedError


def min_nodes_of(link: ToController, min_nodes: int = 2) -> Started:
    as_link: Any = link
    settings = Settings(name="c", nnodes=3, min_nodes=min_nodes, form_timeout=77.0)
    return Started(as_link, Launched(LaunchPlan(settings, "")))


def test_who_has_failed_is_left_out_when_all_others_are_here() -> None:
    link = ToController(("a", "b", ""))
    weighing = min_nodes_of(link)
    assert asyncio.run(weighing.weigh({2: "no key"})) == {}
    assert [m.nodes for m in link.asked] == [{2: "no key"}]
    assert asyncio.run(weighing.weigh({2: "no key"})) == {}
    assert asyncio.run(weighing.weigh({2: "no key", 0: "it ended"})) == {0: "it ended"}, "nobody is left out twice"
    assert len(link.asked) == 1


def test_as_long_as_somebody_may_come_nobody_is_left_out() -> None:
    link = ToController(("a", "", ""))
    assert asyncio.run(min_nodes_of(link).weigh({2: "no key"})) == {}
    assert not link.asked
    link.facts = msgspec.structs.replace(link.facts, hostnames=("a", "b", "c"))
    assert asyncio.run(min_nodes_of(link).weigh({2: "it ended"})) == {}, "it counts as here until it is given up"
    assert not link.asked


@pytest.mark.parametrize(("min_nodes", "failed"), [(0, 1), (2, 2), (3, 1)])
def test_too_many_failures_end_the_start(min_nodes: int, failed: int) -> None:
    failures = dict.fromkeys(range(failed), "no key")
    link = ToController(("", "", "c"))
    assert asyncio.run(min_nodes_of(link, min_nodes).weigh(failures)) == failures
    assert not link.asked


def test_a_world_that_was_formed_once_keeps_its_nodes() -> None:
    link = ToController(("a", "b", ""), generation=1)
    assert asyncio.run(min_nodes_of(link).weigh({2: "no key"})) == {2: "no key"}
    assert not link.asked


def test_at_the_deadline_whoever_has_not_come_is_left_out() -> None:
    link = ToController(("a", "", ""))
    assert asyncio.run(min_nodes_of(link, 1).drop_missing({2: "no key"}, 30.0))
    assert [m.nodes for m in link.asked] == [{1: "it did not come within 30 s", 2: "no key"}]
    few = ToController(("a", "", ""), refusal="1 of 3 nodes are here; at least 2 are needed")
    assert not asyncio.run(min_nodes_of(few).drop_missing({}, 30.0))
    assert not asyncio.run(min_nodes_of(ToController(("a", "b", "c"))).drop_missing({}, 30.0)), (
        "it is not nodes that lack"
    )


@pytest.mark.parametrize("least", [-1, 4])
def test_a_least_that_does_not_fit(least: int) -> None:
    with pytest.raises(UsageError, match=f"--min-nodes {least} does not fit --nnodes 3"):
        check_settings(Settings(name="c", nnodes=3, min_nodes=least))


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_on_another_system_than_linux_no_cluster_is_started(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", system)
    with pytest.raises(UsageError, match=f"^ranks need Linux, and this system is {system}: .* --at HOST, or attach"):
        asyncio.run(launch(Settings(name="c"), lambda _message: None, "python"))


class Gathers(ToController):
    """The world stands as soon as somebody was left out; before that it waits for ever."""

    async def wait_ready(self, timeout: float | None, on_progress: object = None) -> None:
        self.waits = (*self.waits, timeout)
        if not self.asked or self.refusal:
            raise TimeoutError

    waits: tuple[float | None, ...] = ()


def wait(link: Gathers, min_nodes: int) -> None:
    asyncio.run(min_nodes_of(link, min_nodes).wait_formed(5.0, None))


def test_a_start_that_waited_long_enough_forms_the_world_with_those_that_are_here() -> None:
    link = Gathers(("a", "b", ""))
    wait(link, 2)
    assert [m.nodes for m in link.asked] == [{2: "it did not come within 5 s"}]
    assert link.waits == (5.0, 77.0)


@pytest.mark.parametrize("refusal", ["", "1 of 3 nodes are here; at least 2 are needed"])
def test_a_start_that_needs_more_says_who_is_missing(refusal: str) -> None:
    link = Gathers(("a", "b", ""), refusal=refusal)
    with pytest.raises(LaunchError, match="2 of 3 nodes here; missing: node 2 after 5 s"):
        wait(link, 2 if refusal else 0)
