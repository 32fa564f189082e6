"""What a client that is behind is still sent: everything but what later output has replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from jdist.controller.backlog import Backlog
from jdist.controller.peers import PeerStreams
from jdist.core.errors import Overrun
from jdist.core.messages.base import Ack, Message
from jdist.core.messages.runs import Clear, Display, Output, OutputItem, OutputNumber, RunStarted, Tail, Text
from jdist.wire.transport.sockets import Frames
from jdist.wire.transport.streams import MESSAGE, Stream, read_head
from jdist.wire.values.frames import Unpacker, pack, split

read: Unpacker[Output | RunStarted | Ack] = Unpacker(Output | RunStarted | Ack)

CLEAR = Clear((0,), wait=True)


def update(n: int, rank: int = 0, nbytes: int = 0) -> Display:
    return Display((rank,), {"text/plain": f"{n}" + "x" * nbytes}, display_id="plot", is_update=True)


def shown(n: int, rank: int = 0) -> Display:
    return Display((rank,), {"text/plain": f"{n}"})


def tail(n: int) -> Tail:
    return Tail(0, "stdout", n, 0, "end")


def line(n: int) -> Text:
    return Text((0,), "stdout", f"{n}\n")


def waiting(*messages: Message) -> list[Message]:
    backlog = Backlog(1 << 20)
    for message in messages:
        backlog.add(message)
    found: list[Message] = [read(data) for data in backlog.take()]
    assert not backlog
    return found


@pytest.mark.parametrize(
    ("came", "left"),
    [
        ([update(1), line(1), update(2), line(2), update(3)], [line(1), line(2), update(3)]),
        ([update(1), update(1, rank=1), update(2)], [update(1, rank=1), update(2)]),
        ([shown(1), CLEAR, shown(2), CLEAR, shown(3)], [CLEAR, shown(3)]),
        ([shown(1), Clear((0,)), CLEAR, shown(2), CLEAR], [Clear((0,)), shown(2), CLEAR]),
        ([CLEAR, tail(1), CLEAR, tail(2)], [CLEAR, tail(2)]),
        ([shown(1), Clear((1,)), shown(2)], [shown(1), Clear((1,)), shown(2)]),
        ([tail(1), line(1), tail(2)], [line(1), tail(2)]),
        ([line(1), line(2)], [line(1), line(2)]),
    ],
)
def test_what_is_replaced_or_cleared_is_not_sent_and_the_rest_stays_in_order(
    came: Sequence[OutputItem], left: Sequence[OutputItem]
) -> None:
    found = waiting(RunStarted(1), Output(1, tuple(came)), Ack())
    assert found == [RunStarted(1), Output(1, tuple(left)), Ack()]
    apart = waiting(RunStarted(1), *(Output(1, (item,)) for item in came), Ack())
    assert apart == [RunStarted(1), *(Output(1, (item,)) for item in left), Ack()]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_what_is_left_has_numbers_without_gaps(monkeypatch: pytest.MonkeyPatch, is_compacted: bool) -> None:
    monkeypatch.setattr("jdist.controller.backlog._AT_ONCE", -100 if is_compacted else 1000)
    came = [
        Output(run, items, OutputNumber(agent, value, previous))
        for run, agent, value, previous, items in (
            (1, 7, 4, 3, (update(1), line(1))),
            (1, 7, 5, 4, (update(2),)),
            (1, 8, 1, 0, (update(1, rank=1),)),
            (2, 7, 6, 2, (update(1),)),
            (1, 7, 7, 5, (update(3),)),
            (1, 7, 8, 7, (update(4), line(2))),
            (1, 8, 2, 1, (update(2, rank=1),)),
            (1, 7, 9, 8, ()),
            (1, 7, 10, 9, ()),
        )
    ]
    assert waiting(*came) == [
        Output(1, (line(1),), OutputNumber(7, 4, 3)),
        Output(2, (update(1),), OutputNumber(7, 6, 2)),
        Output(1, (update(4), line(2)), OutputNumber(7, 8, 4)),
        Output(1, (update(2, rank=1),), OutputNumber(8, 2, 0)),
        Output(1, (), OutputNumber(7, 10, 8)),
    ]


def test_a_plot_of_hours_takes_the_room_of_one_picture() -> None:
    backlog = Backlog(1 << 20)
    for n in range(20_000):
        backlog.add(Output(1, (update(n),), OutputNumber(7, n + 1, n)))
    assert len(backlog._sizes) < 5000
    assert [read(data) for data in backlog.take()] == [Output(1, (update(19_999),), OutputNumber(7, 20_000, 0))]


def test_a_run_replaces_nothing_of_another() -> None:
    assert waiting(Output(1, (update(1),)), Output(2, (update(2),))) == [
        Output(1, (update(1),)),
        Output(2, (update(2),)),
    ]


def test_only_what_is_to_be_sent_counts_against_the_limit() -> None:
    backlog = Backlog(1 << 20)
    for n in range(100):
        backlog.add(Output(1, (update(n, nbytes=500_000),)))
    assert len(backlog.take()) == 1
    with pytest.raises(Overrun, match="1 MiB wait to be sent"):
        for n in range(100):
            backlog.add(Output(1, (update(n, rank=n, nbytes=500_000),)))


@pytest.mark.parametrize(("peer", "numbers"), [("c-0", [0, 9]), ("a-0", list(range(10)))])
def test_a_client_that_is_behind_gets_the_newest_picture_and_an_agent_everything(peer: str, numbers: list[int]) -> None:
    async def main() -> list[int]:
        sent: list[Frames] = []
        theirs, streams = Stream(1), PeerStreams(lambda frames: sent.append(frames) or True, lambda peer, why: None)
        streams.receive(peer, theirs.message(b"hello"))
        for n in range(10):
            streams.send(peer, Output(1, (update(n, nbytes=1_000_000),)))
            await asyncio.sleep(0)
        taken = 0
        while taken < len(sent):  # it takes what is here, and says so
            _, head, data = sent[taken]
            taken += 1
            for answer in theirs.receive(read_head([head, data]), data)[1]:
                streams.receive(peer, answer)
            await asyncio.sleep(0)
        found = [
            read(each) for _, head, data in sent if read_head([head, data]).kind == MESSAGE for each in split(data)
        ]
        return [int(m.items[0].data["text/plain"].rstrip("x")) for m in found]

    assert asyncio.run(main()) == numbers


def test_what_a_client_that_is_behind_is_told_last_leaves_before_the_end() -> None:
    async def main() -> None:
        sent: list[Frames] = []
        streams = PeerStreams(lambda frames: sent.append(frames) or True, lambda peer, why: None)
        streams.receive("c-0", Stream(1).message(b"hello"))
        for message in (Output(1, (update(1, nbytes=1_000_000),)), Ack()):
            streams.send("c-0", message)
        streams.flush()
        assert split(sent[-1][2])[-1] == pack(Ack())

    asyncio.run(main())
