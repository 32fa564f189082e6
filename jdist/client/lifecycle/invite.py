"""Inviting: the controller makes lines with which agents join."""

from __future__ import annotations

from jdist.client.link import Link
from jdist.core.errors import UsageError
from jdist.core.messages.membership import Invite, Invited


async def invite(link: Link, *, is_remote: bool = True, seconds: float = 0.0, revokes: bool = False) -> str:
    """A new join line, for ``seconds`` (0: as the cluster's settings say). Raises UsageError.

    ``is_remote``: for agents on other hosts, too; ``revokes``: every line before it is void.
    """
    invited = (await link.ask((), Invite(is_remote, seconds, revokes)))[-1]
    if not isinstance(invited, Invited):
        raise UsageError(f"the controller does not say how to join: {invited}")
    return invited.line
