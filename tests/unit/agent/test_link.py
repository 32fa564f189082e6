"""The controller link: its streams, and how long an agent goes on without its controller. Without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from jdist.agent import link as agent_link
from jdist.agent.link import ControllerLink
from jdist.core.messages.base import Message
from jdist.core.messages.membership import Heartbeat, LivenessLost, Rejected, Shutdown
from jdist.core.messages.runs import Output, OutputNumber, RankDone, Text
from jdist.core.settings import BEAT
from jdist.wire.transport.invitations import Endpoint
from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.streams import AGAIN, BACK, Frames, Stream, read_head, unknown
from jdist.wire.values.frames import join, pack, pack_report

KEY = KeyPair("p" * 40, "s" * 40)
ENDPOINT = Endpoint("c0ffee", "10.0.0.7", 4000, 4001, "k" * 40, KEY)
HELLO = pack(Rejected("stands for a hello"))


class Loop(asyncio.SelectorEventLoop):
    """Its time stands still but for what a test says."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@dataclass
class Liveness:
    """A liveness connection that a link has dialled."""

    name: str
    on_end: Callable[[bool], None]
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Network:
    """What a link dials, and a controller at the other end of it."""

    loop: Loop
    is_broken: bool = False
    sent: list[Frames] = field(default_factory=list)
    dialled: list[Liveness] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    peer: Stream = field(default_factory=lambda: Stream(1))
    on_frames: Callable[[Frames], None] = print
    on_change: Callable[[bool], None] = print

    def dial(self, *args: Any) -> Network:
        self.on_frames, self.on_change = args[-2:]
        return self

    async def dial_liveness(self, address: tuple[str, int], name: str, on_end: Callable[[bool], None]) -> Liveness:
        assert address == ("10.0.0.7", 4001)
        if self.is_broken:
            raise OSError("no route to host")
        self.dialled.append(Liveness(name, on_end))
        return self.dialled[-1]

    def send(self, frames: Frames) -> None:
        self.sent.append(frames)

    def close(self, linger: float = 0.0) -> None:
        pass

    def received(self) -> list[bytes]:
        """Payloads that the controller has got from the agent since the last call, in order and each once."""
        sent, self.sent = self.sent, []
        found = []
        for frames in sent:
            payload, answers = self.peer.receive(read_head(frames), frames[1])
            found += [payload] if payload else []
            for answer in answers:
                self.on_frames(answer)
        return found

    def say(self, message: Message) -> None:
        self.on_frames(self.peer.message(pack(message)))

    async def passes(self, seconds: float) -> None:
        self.loop.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


Scene = Callable[[ControllerLink, Network], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    def play(scene: Scene) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Loop)
            network = Network(loop)
            monkeypatch.setattr(agent_link, "DialledPort", network.dial)
            monkeypatch.setattr(agent_link, "dial_liveness", network.dial_liveness)
            link = ControllerLink(None, ENDPOINT, network.lost.append)
            link.open(lambda: Rejected("stands for a hello"), network.got.append)
            await scene(link, network)
            link.close(0.0)

        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(main())

    return play


def test_a_stream_begins_with_a_hello_and_goes_on_in_order(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        link.send(LivenessLost())
        link.send(LivenessLost())
        await network.passes(0.0)
        assert network.received() == [HELLO, join([pack(LivenessLost())] * 2)], "what is sent at once leaves together"
        frames = network.peer.message(pack(Shutdown()))
        network.on_frames(frames)
        network.on_frames(frames)
        assert network.got == [pack(Shutdown())], "each message counts once"
        network.on_frames(network.peer.message(join([pack(Heartbeat()), pack(Shutdown())])))
        assert network.got[1:] == [pack(Heartbeat()), pack(Shutdown())], "those that come together are handled singly"

    play(scene)


def test_after_a_broken_connection_what_did_not_arrive_is_sent_again(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        link.send(LivenessLost())
        await network.passes(0.0)
        network.sent.clear()  # the connection broke with it
        network.on_change(False)
        network.on_change(True)
        assert [read_head(frames).kind for frames in network.sent] == [AGAIN]
        network.received()  # the controller answers with what it has
        assert network.received() == [pack(LivenessLost())]

    play(scene)


def test_what_the_controller_did_not_get_to_say_is_asked_for(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        network.peer.message(pack(Shutdown()))  # lost on its way
        network.on_change(True)
        network.received()
        assert network.got == [pack(Shutdown())]
        assert BACK not in [read_head(frames).kind for frames in network.sent]

    play(scene)


def test_the_ends_of_cells_that_were_not_acknowledged_follow_the_next_hello(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        link.send(RankDone(6, 0, "value"))
        await network.passes(0.0)
        network.received()
        network.on_frames(network.peer.note())
        for done in (RankDone(7, 0, "value"), LivenessLost(), RankDone(7, 1, "error")):
            link.send(done)
        await network.passes(0.0)
        network.sent.clear()
        network.on_frames(unknown(1))
        network.peer = Stream(2)
        await network.passes(0.0)
        again = join([HELLO, pack_report(RankDone(7, 0, "value")), pack_report(RankDone(7, 1, "error"))])
        assert network.received() == [again]

    play(scene)


def test_the_newest_output_is_sent_again_to_another_controller(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was acknowledged: the one that died may not have passed it on."""
    monkeypatch.setattr(agent_link, "_RESENT_SECONDS", 10.0)
    monkeypatch.setattr(agent_link, "_RESENT_BYTES", 1000)

    def output(number: int, text: str = "") -> Output:
        return Output(7, (Text((0,), "stdout", text),), OutputNumber(5, number, number - 1))

    async def scene(link: ControllerLink, network: Network) -> None:
        link.send(output(1))
        await network.passes(20.0)
        network.received()
        network.on_frames(network.peer.note())
        link.send(output(2))
        await network.passes(0.0)
        network.received()
        network.on_frames(network.peer.note())
        link.send(RankDone(7, 0, "value"))
        await network.passes(60.0)
        for session in (1, 2):  # the second time, with nothing new
            network.sent.clear()
            network.on_frames(unknown(session))
            network.peer = Stream(session + 1)
            await network.passes(0.0)
            assert network.received() == [join([HELLO, pack(output(2)), pack_report(RankDone(7, 0, "value"))])]
        long = output(3, "x" * 880)
        link.send(long)
        network.on_frames(unknown(3))
        network.peer = Stream(4)
        await network.passes(0.0)
        assert network.received() == [join([HELLO, pack(long), pack_report(RankDone(7, 0, "value"))])], "no more room"

    play(scene)


def test_a_controller_that_does_not_know_the_agent_gets_a_fresh_hello_alone(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        link.send(LivenessLost())
        network.sent.clear()
        network.on_frames(unknown(1))
        network.peer = Stream(2)
        await network.passes(0.0)
        assert network.received() == [HELLO], "what an earlier stream had to say is void"
        network.on_frames(unknown(1))
        assert network.received() == [], "an answer to the earlier stream"
        network.on_frames(Stream(1).message(pack(Shutdown())))
        assert network.got == []

    play(scene)


def test_an_agent_that_ends_says_hello_no_more(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        link.is_leaving = True
        network.on_frames(unknown(1))
        await network.passes(0.0)
        assert network.received() == []
        network.say(Shutdown())
        assert network.got == [pack(Shutdown())], "it still hears that it has less time"

    play(scene)


def test_a_beat_is_a_note_that_the_controller_answers(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        for _ in range(100):
            await network.passes(BEAT)
            link.beat()
            assert network.received() == [pack(Heartbeat())]
        assert network.lost == []

    play(scene)


@pytest.mark.parametrize("is_dead", [True, False])
def test_without_the_controller_the_agent_goes_on_for_the_grace(play: Play, is_dead: bool) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        link.beat()
        network.received()  # is answered
        link.grace = 60.0
        if is_dead:
            link.dial_liveness("here")
            await network.passes(0.0)
            network.dialled[0].on_end(True)
        else:
            network.on_change(False)
        await network.passes(59.9)
        assert network.lost == []
        await network.passes(0.2)
        assert network.lost == ["the controller at 10.0.0.7:4000 has not been there for 60 s"]

    play(scene)


def test_before_it_has_a_place_the_grace_is_short(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        await network.passes(9.9)
        assert network.lost == []
        await network.passes(0.2)
        assert len(network.lost) == 1

    play(scene)


def test_anything_that_arrives_ends_the_grace(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        link.grace = 5.0
        network.on_change(False)
        await network.passes(4.9)
        network.say(Shutdown())
        await network.passes(100.0)
        assert network.lost == []

    play(scene)


def test_a_silent_controller_is_noticed_by_the_beats(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        link.beat()
        network.received()
        link.grace = 2.0
        for _ in range(7):
            await network.passes(BEAT)
            link.beat()
            assert network.lost == []
        await network.passes(2.0)
        assert len(network.lost) == 1

    play(scene)


def test_a_broken_liveness_connection_is_reported_and_another_takes_its_place(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        link.dial_liveness("one")
        await network.passes(0.0)
        network.dialled[0].on_end(False)
        await network.passes(0.0)
        assert network.received() == [pack(LivenessLost())]
        link.dial_liveness("two")
        await network.passes(0.0)
        assert [(each.name, each.is_closed) for each in network.dialled] == [("one", True), ("two", False)]

    play(scene)


def test_a_liveness_connection_that_cannot_be_made_is_reported_after_a_beat(play: Play) -> None:
    async def scene(link: ControllerLink, network: Network) -> None:
        network.received()
        network.is_broken = True
        link.dial_liveness("one")
        await network.passes(0.0)
        await network.passes(0.9 * BEAT)
        assert network.received() == []
        await network.passes(0.2 * BEAT)
        assert network.received() == [pack(LivenessLost())]

    play(scene)
