from __future__ import annotations

import asyncio
from typing import Any

from jdist.server.event_feed import INTERVAL, News


def rows(*states: str) -> list[dict[str, Any]]:
    return [{"rank": n, "state": state, "death_age": 0, "doing": None} for n, state in enumerate(states)]


def test_what_is_told() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        now: dict[str, Any] = {}
        told: list[tuple[float, dict[str, Any]]] = []
        news = News(now.get, lambda event: told.append((loop.time(), event)))
        now["c1"] = {"name": "c1", "ranks": rows("idle", "idle"), "runs": []}
        for _ in range(50):
            news.tell("c1")
        await asyncio.sleep(0.05)
        assert [e["action"] for _, e in told] == ["changed"]
        assert len(told[0][1]["ranks"]) == 2
        for n in range(20):
            now["c1"] = {"name": "c1", "ranks": rows("idle", f"at {n}"), "runs": []}
            news.tell("c1")
            await asyncio.sleep(0.01)
        await asyncio.sleep(INTERVAL)
        assert [[r["state"] for r in e["ranks"]] for _, e in told[1:]] == [["at 19"]]
        assert told[1][0] - told[0][0] >= INTERVAL
        news.tell("c1")
        await asyncio.sleep(2 * INTERVAL)
        assert len(told) == 2, "nothing is new"
        news.tell("c1", True, "echo jdist1.secret | jdist join -")
        await asyncio.sleep(2 * INTERVAL)
        assert "secret" not in told[2][1]["notices"][0]
        del now["c1"]
        news.tell("c1")
        await asyncio.sleep(2 * INTERVAL)
        assert [e["action"] for _, e in told[3:]] == ["gone"]
        assert news.names == set()
        news.close()

    asyncio.run(scenario())
