"""PendingConnections: the oldest makes room; who has proved itself is not ended."""

from __future__ import annotations

from unittest.mock import Mock

from jdist.wire.transport.public_port import PendingConnections


def test_the_oldest_of_too_many_is_ended() -> None:
    first, second, third, fourth = (Mock() for _ in range(4))
    pending = PendingConnections(most=2)
    pending.add("1", first)
    pending.add("2", second)
    pending.discard("1")
    pending.add("3", third)
    second.cancel.assert_not_called()
    pending.add("4", fourth)
    second.cancel.assert_called_once()
    for other in (first, third, fourth):
        other.cancel.assert_not_called()
    pending.discard("1")
    assert len(pending) == 2
