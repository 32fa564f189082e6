"""PendingConnections: the oldest makes room; who has proved itself is not ended."""

from __future__ import annotations

from jdist.wire.transport.public_port import PendingConnections


def test_the_oldest_of_too_many_is_ended() -> None:
    ended: list[str] = []
    newcomers = PendingConnections(most=2)
    first = newcomers.add(lambda: ended.append("first"))
    newcomers.add(lambda: ended.append("second"))
    newcomers.discard(first)
    newcomers.add(lambda: ended.append("third"))
    assert not ended
    newcomers.add(lambda: ended.append("fourth"))
    assert ended == ["second"]
    newcomers.discard(first)
    assert len(newcomers) == 2
