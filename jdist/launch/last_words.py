"""Last words: what an agent wrote before it ended, for the message that says so. Pure."""

from __future__ import annotations

from jdist.wire.log import without_verbose
from jdist.wire.transport.invitations import REFUSED

_MOST = 3
"""Lines."""


def last_words(log: str) -> str:
    """The end of a log that agents of one machine may share, on one line; of one that was refused, only that."""
    last = without_verbose(log.strip().splitlines())[-_MOST:]
    refusals = [line[line.index(REFUSED) :] for line in last if REFUSED in line]
    return " / ".join(dict.fromkeys(refusals) or last)
