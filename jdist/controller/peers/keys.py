"""PeerKeys: whose keys open the control port, and as what; invitations are made, run out and are revoked here.

Clients hold the key of the connection file and call themselves c-…; agents enrol as e-… with an invitation's key, and
then speak with one of their own, under the name that follows from it. A key that is used under another name is not
heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from jdist.core import __version__
from jdist.core.errors import ProtocolError
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.membership import Enrol, Enrolled, Rejected
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import LOOPBACK, Charter, Invitation, agent_name
from jdist.wire.transport.public_port import own_addresses
from jdist.wire.transport.sockets import KeyGate
from jdist.wire.values.frames import Unpacker

_MOST_AGENTS = 4096
"""Keys of agents that are remembered; more only come if agents enrol in vain."""
_REMEMBERED = 86400.0
"""Seconds for which who comes with a line that has expired is told so."""
_KEY_LENGTH = 40
"""Characters of a public key."""
_from_newcomer: Unpacker[Enrol] = Unpacker(Enrol)


class PeerKeys:
    """The lists behind a :class:`KeyGate`. ``on_change`` is called when the charter has to be written again.

    ``here`` gives the names of the agents that have a place in the world.
    """

    def __init__(self, gate: KeyGate, charter: Charter, on_change: Callable[[], None], here: Callable[[], set[str]]):
        self.invitations = charter.invitations
        self.agents = charter.agents
        self._gate = gate
        self._charter = charter
        self._on_change = on_change
        self._here = here
        gate.allow((charter.for_clients.public,), called="c-")
        for key in self.agents:
            gate.allow((key,), called=agent_name(key))
        for invitation in self.invitations:
            gate.allow((invitation.key.public,), called="e-", until=invitation.expires)

    def invite(self, ports: tuple[int, int], door: tuple[str, int] | None, seconds: float) -> JoinLine:
        """A new line, with a key of its own. ``door``: where it listens, and at which port; None for this host only."""
        self._forget_old_lines()
        invitation = Invitation.make(seconds or self._charter.settings.invitation)
        self._gate.allow((invitation.key.public,), called="e-", until=invitation.expires)
        self.invitations = (*self.invitations, invitation)
        self._on_change()
        hosts: tuple[str, ...] = (LOOPBACK,)
        if door is not None:
            ports = (door[1], door[1])
            hosts = own_addresses() if door[0] == "*" else (door[0],)
        return JoinLine(self._charter.cluster, hosts, *ports, self._charter.keys.public, invitation.key)

    def revoke(self) -> None:
        """Nobody joins with a line that has been printed so far; the nodes that are here stay.

        Who has enrolled with such a line and has no place is forgotten as well: the line may have been in other hands.
        """
        self._gate.forbid(i.key.public for i in self.invitations)
        self.invitations = ()
        self._keep(self._of_those_here())
        self._on_change()

    def _forget_old_lines(self) -> None:
        since = time.time() - _REMEMBERED
        self._gate.forget(i.key.public for i in self.invitations if i.expires < since)
        self.invitations = tuple(i for i in self.invitations if i.expires >= since)

    def _of_those_here(self) -> tuple[str, ...]:
        here = self._here()
        return tuple(k for k in self.agents if agent_name(k) in here)

    def _keep(self, agents: tuple[str, ...]) -> None:
        kept = set(agents)
        self._gate.forget(k for k in self.agents if k not in kept)
        self.agents = agents

    def enrol(self, data: bytes) -> Message:
        """Take a newcomer's key, or say why not."""
        try:
            newcomer: Enrol = _from_newcomer(data)
        except ProtocolError:
            return Rejected(f"it speaks another protocol than jdist {__version__}, which the controller has")
        if (newcomer.protocol, newcomer.version) != (PROTOCOL, self._charter.version):
            theirs = f"it has jdist {newcomer.version} (protocol {newcomer.protocol})"
            return Rejected(f"{theirs}, the controller {self._charter.version} ({PROTOCOL})")
        if len(newcomer.key) != _KEY_LENGTH or newcomer.key == self._charter.for_clients.public:
            return Rejected("it has no key of its own")
        if any(newcomer.key == i.key.public for i in self.invitations):
            return Rejected("it has no key of its own")
        if newcomer.key in self.agents:
            return Enrolled()
        if len(self.agents) >= _MOST_AGENTS:
            self._keep((*self._of_those_here(), *self.agents[-_MOST_AGENTS // 2 :]))
        self._gate.allow((newcomer.key,), called=agent_name(newcomer.key))
        self.agents = (*self.agents, newcomer.key)
        self._on_change()
        return Enrolled()
