"""False controllers: a node gives itself to the controller that its line names, and to nobody in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jdist.agent.link import enrol
from jdist.core.errors import LaunchError
from jdist.core.messages.membership import Enrolled, Rejected
from jdist.wire.bulk.server import DataServer
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.public_port import open_public_port
from jdist.wire.transport.sockets import Frames, KeyGate, bind_tcp, new_context
from jdist.wire.values.frames import pack

DEADLINE = 60.0
TRUE, LINE = KeyPair.make(), KeyPair.make()
CLUSTER = "c0ffee"


@asynccontextmanager
async def controller(context: Any, keys: KeyPair, answer: bytes) -> AsyncIterator[tuple[int, list[Frames]]]:
    """Somebody who says that this is the cluster, holds these keys, and answers all; port, and what was heard."""
    heard: list[Frames] = []
    gate = KeyGate(context)
    gate.allow([LINE.public], called="e-")

    def on_frames(frames: Frames) -> None:
        heard.append(frames)
        control.send([frames[0], answer])

    control = bind_tcp(context, "127.0.0.1", keys, gate, on_frames)
    data = DataServer(CLUSTER, lambda _name, _is_dead: None)
    door = open_public_port("127.0.0.1")
    data.listen_publicly(door, control.tcp_port)
    try:
        yield int(door.getsockname()[1]), heard
    finally:
        data.close()
        control.close()
        gate.close()


def ask(keys: KeyPair, answer: bytes) -> tuple[str, int]:
    """Why the agent is not let in, "" if it is; how much it said."""

    async def work() -> tuple[str, int]:
        context = new_context()
        async with controller(context, keys, answer) as (port, heard):
            line = JoinLine(CLUSTER, ("127.0.0.1",), port, port, TRUE.public, LINE)
            try:
                await enrol(context, line)
                problem = ""
            except LaunchError as e:
                problem = str(e)
        await asyncio.to_thread(context.term)
        return problem, len(heard)

    return asyncio.run(asyncio.wait_for(work(), DEADLINE))


def test_a_false_controller_is_refused_and_hears_nothing() -> None:
    problem, heard = ask(KeyPair.make(), pack(Enrolled()))
    assert "is not the controller that the join line names" in problem
    assert heard == 0


def test_the_true_one_lets_it_in() -> None:
    assert ask(TRUE, pack(Enrolled())) == ("", 1)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (pack(Rejected("it is full")), "refused by the controller: it is full"),
        (b"\xff\xff", "the controller's answer cannot be read"),
    ],
)
def test_what_else_the_true_one_may_say(answer: bytes, problem: str) -> None:
    said, _ = ask(TRUE, answer)
    assert said.startswith(problem)
