"""Event feed: what is sent of a change, how often, and what is not."""

from __future__ import annotations

import asyncio

from msgspec import UNSET

from jdist.server.cluster_list import INTERVAL, ClusterEvent, EventFeed
from jdist.server.snapshots import ClusterSnapshot, RankRow


def cluster(*states: str) -> ClusterSnapshot:
    rows = (RankRow(n, 0, n, "a", 40 + n, state, 0, "", False, "", 0.0) for n, state in enumerate(states))
    return ClusterSnapshot(name="c1", ranks=tuple(rows))


def test_only_changes_are_sent_twice_a_second_at_most() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        now: dict[str, ClusterSnapshot] = {}
        sent: list[tuple[float, ClusterEvent]] = []
        feed = EventFeed(now.get, lambda event: sent.append((loop.time(), event)))
        now["c1"] = cluster("idle", "idle")
        for _ in range(50):
            feed.update("c1")
        while not sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert [e.action for _, e in sent] == ["changed"]
        assert (len(sent[0][1].ranks), sent[0][1].cluster.ranks) == (2, UNSET)
        for n in range(20):
            now["c1"] = cluster("idle", f"at {n}")
            feed.update("c1")
            await asyncio.sleep(0)
        await asyncio.sleep(INTERVAL)
        assert [[r.state for r in e.ranks] for _, e in sent[1:]] == [["at 19"]]
        assert sent[1][0] - sent[0][0] >= INTERVAL
        feed.update("c1")
        await asyncio.sleep(2 * INTERVAL)
        assert len(sent) == 2, "nothing is new"
        feed.update("c1", True, "echo jdist1.secret | jdist join -")
        await asyncio.sleep(2 * INTERVAL)
        assert "secret" not in sent[2][1].notices[0]
        del now["c1"]
        feed.update("c1")
        await asyncio.sleep(2 * INTERVAL)
        assert [e.action for _, e in sent[3:]] == ["gone"]
        assert feed.names == set()
        feed.close()

    asyncio.run(scenario())
