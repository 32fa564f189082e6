"""PendingConnections: the oldest makes room; who has proved itself is not ended."""

from __future__ import annotations

from jdist.wire.transport.pending_connections import PendingConnections


def test_the_oldest_of_too_many_is_ended() -> None:
    ended: list[str] = []
    newcomers = PendingConnections(most=2)
    first = newcomers.enter(lambda: ended.append("first"))
    newcomers.enter(lambda: ended.append("second"))
    newcomers.leave(first)
    newcomers.enter(lambda: ended.append("third"))
    assert not ended
    newcomers.enter(lambda: ended.append("fourth"))
    assert ended == ["second"]
    newcomers.leave(first)
    assert len(newcomers) == 2
