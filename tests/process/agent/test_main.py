"""The agent's life: how it ends, with which code, and that it leaves nothing behind. Its controller is made up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from jdist.agent import main
from jdist.agent.main import Agent
from jdist.agent.node import JoinOptions
from jdist.agent.processes import workers
from jdist.core.messages.base import Message
from jdist.core.messages.membership import AgentHello, AgentLeaving, Rejected, Shutdown
from jdist.core.messages.nodes import ClockReading, ReadClock
from jdist.core.messages.protocol import NodeQuery, NodeReply
from jdist.core.messages.saving import EndAnnounced, KeepAutosave, MayLeave, SaveOptions
from jdist.wire.transport.invitations import Endpoint
from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.sockets import new_context
from jdist.wire.values.frames import pack

KEYS = KeyPair.make()
ENDPOINT = Endpoint("c0ffee", "127.0.0.1", 1, 2, KEYS.public, KEYS)
DEADLINE = 30.0


class Link:
    """A connection to a controller that never answers; a test speaks for it."""

    made: Link
    act: Callable[[], None]

    def __init__(self, context: Any, endpoint: Endpoint, on_lost: Callable[[str], None]):
        Link.made = self
        self.on_lost = on_lost
        self.sent: list[Message] = []
        self.beats = 0
        self.is_leaving = self.is_closed = False

    def open(self, hello: Callable[[], Message], on_message: Callable[[bytes], None]) -> None:
        self.on_message = on_message
        self.send(hello())

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def beat(self) -> None:
        self.beats += 1
        if self.beats == 1:
            asyncio.get_running_loop().call_soon(self.act)

    def close(self, linger: float) -> None:
        self.is_closed = True

    def says(self, message: Message) -> None:
        self.on_message(pack(message))


class Starter:
    """Starts nothing."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Reaper:
    """Leaves the children of this process alone: they are other tests'."""

    def end_all(self, timeout: float) -> None:
        pass


Live = Callable[[Callable[[Agent, Link], None]], int]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, runtime_directory: Path) -> Live:
    """Runs an agent, does something to it at its first beat, and returns its exit code."""
    monkeypatch.setattr(main, "ControllerLink", Link)
    monkeypatch.setattr(workers, "ChildReaper", Reaper)
    monkeypatch.setattr(main, "sweep_dead", lambda *_: None)

    def live(act: Callable[[Agent, Link], None]) -> int:
        starter = Starter()
        before = set(runtime_directory.iterdir())

        async def run() -> int:
            context = new_context()
            agent = Agent(context, ENDPOINT, starter, JoinOptions())  # type: ignore[arg-type]
            assert agent._node.directory.is_dir()
            Link.made.act = lambda: act(agent, Link.made)
            try:
                return await asyncio.wait_for(agent.run(), DEADLINE)
            finally:
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                    asyncio.get_running_loop().remove_signal_handler(number)
                context.destroy(linger=0)
                assert not agent._node.directory.exists()

        code = asyncio.run(run())
        assert starter.is_closed
        assert Link.made.is_closed
        assert set(runtime_directory.iterdir()) == before
        return code

    return live


def test_it_begins_with_a_hello_and_beats(live: Live) -> None:
    def act(_: Agent, link: Link) -> None:
        assert isinstance(link.sent[0], AgentHello)
        link.says(Shutdown())

    assert live(act) == 0
    assert Link.made.beats == 1


@pytest.mark.parametrize(
    ("act", "code", "says"),
    [
        (lambda agent, link: link.says(Shutdown()), 0, "stopped"),
        (lambda agent, link: link.says(Rejected("torch is missing")), 1, "torch is missing"),
        (lambda agent, link: link.on_lost("the controller has not been there"), 1, "has not been there"),
        (lambda agent, link: agent.handle_server_exit(), 0, "server"),
    ],
)
def test_its_ends(
    live: Live,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    act: Callable[[Agent, Link], None],
    code: int,
    says: str,
) -> None:
    caplog.set_level("INFO", "jdist.agent")
    assert live(act) == code
    assert Link.made.is_leaving
    assert says in capsys.readouterr().err + caplog.text


def test_a_task_that_fails_costs_the_ranks_nothing(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("a fault of its own")

    def act(agent: Agent, link: Link) -> None:
        agent._create_task(fails())
        asyncio.get_running_loop().call_later(0.1, link.says, Shutdown())

    assert live(act) == 0
    assert "a fault of its own" in caplog.text


def test_heartbeats_that_fail_end_it_with_the_reason(
    live: Live, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Link) -> None:
        raise ValueError("a fault of its own")

    monkeypatch.setattr(Link, "beat", fail)
    assert live(lambda agent, link: None) == 1
    assert "a fault of its own" in caplog.text


def test_by_sigterm_it_leaves_and_says_why(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def act(_: Agent, link: Link) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    assert live(act) == 0
    assert [m for m in Link.made.sent if isinstance(m, AgentLeaving)] == [
        AgentLeaving("its agent was ended by SIGTERM")
    ]


KEPT = KeepAutosave(SaveOptions("/d"), 60.0, grace=DEADLINE)


@pytest.mark.parametrize("answer", ["MayLeave", "none"])
def test_by_sigterm_it_stays_for_a_last_save(live: Live, answer: str) -> None:
    """Until the controller lets it go, or its grace has passed."""

    def act(_: Agent, link: Link) -> None:
        link.says(structs.replace(KEPT, grace=DEADLINE if answer == "MayLeave" else 0.05))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        if answer == "MayLeave":
            asyncio.get_running_loop().call_later(0.05, link.says, MayLeave())

    assert live(act) == 0
    sent = [type(m).__name__ for m in Link.made.sent if isinstance(m, EndAnnounced | AgentLeaving)]
    assert sent == ["EndAnnounced", "AgentLeaving"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("kept", [KEPT, KeepAutosave(None)])
def test_an_announcement_ends_nothing(live: Live, number: signal.Signals, kept: KeepAutosave) -> None:
    def act(_: Agent, link: Link) -> None:
        link.says(kept)
        os.kill(os.getpid(), number)
        asyncio.get_running_loop().call_later(0.05, link.says, MayLeave())
        asyncio.get_running_loop().call_later(0.1, link.says, Shutdown())

    assert live(act) == 0
    announced = [EndAnnounced(number.name)] if kept.options else []
    assert [m for m in Link.made.sent if isinstance(m, EndAnnounced | AgentLeaving)] == announced


def test_its_parts_are_connected(live: Live) -> None:
    """A query of the node goes through the handlers to its answer."""

    def act(_: Agent, link: Link) -> None:
        link.says(NodeQuery("q", (0,), ReadClock()))
        link.says(Shutdown())

    assert live(act) == 0
    (reply,) = [m for m in Link.made.sent if isinstance(m, NodeReply)]
    assert isinstance(reply.body, ClockReading)
