"""What a client leaves in shared memory: nothing."""

import asyncio
import secrets
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import pytest
from msgspec import structs

from jdist.client.attachment import Attachment
from jdist.client.variables.carrier import Carrier
from jdist.core.messages.protocol import RankReplyBody
from jdist.core.messages.values import Evaluated, Fetch
from jdist.wire.values.objects import encode
from jdist.wire.values.segments import Segment, sweep

SIZE = 1 << 20


class Link:
    """A rank that has handed a value over and whose answer does not arrive."""

    def __init__(self, cluster: str) -> None:
        self.connection: Any = SimpleNamespace(cluster=cluster, host="127.0.0.1", data_port=1)
        self.has_handed_over = asyncio.Event()

    async def current(self) -> Self:
        return self

    async def query(self, ranks: tuple[int, ...], *_: object) -> dict[int, RankReplyBody]:
        payload = structs.replace(encode(1)[0], sizes=(SIZE,))
        return dict.fromkeys(ranks, Evaluated((payload,), "handle", is_near=True))

    async def query_one(self, _: int, fetch: Fetch, *__: object, **___: object) -> NoReturn:
        assert fetch.probe is not None
        with Segment.create(self.connection.cluster, SIZE) as segment:
            segment.hand_over(fetch.probe.path)
        self.has_handed_over.set()
        await asyncio.Event().wait()
        raise AssertionError


def carrier_on(link: Any) -> Carrier:
    attachment = Attachment()
    attachment.adopt(link)
    return Carrier(attachment)


def test_a_pull_that_is_cancelled_while_its_answer_is_on_the_way() -> None:
    cluster = f"t{secrets.token_hex(4)}"

    async def scenario() -> None:
        link: Any = Link(cluster)
        carrier = carrier_on(link)
        pulling = asyncio.ensure_future(carrier.pull(("x",), (0,)))
        handed_over = asyncio.ensure_future(link.has_handed_over.wait())
        done, _ = await asyncio.wait({pulling, handed_over}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if pulling in done:
            pytest.fail(f"the pull ended before it was cancelled: {pulling.exception()!r}")
        assert handed_over in done
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        carrier.close()

    asyncio.run(scenario())
    assert sweep(cluster) == []


def test_a_client_that_moves_no_value() -> None:
    cluster = f"t{secrets.token_hex(4)}"
    link: Any = Link(cluster)
    carrier = carrier_on(link)
    assert sweep(cluster) == [], "nothing is there even while it is attached"
    carrier.close()
