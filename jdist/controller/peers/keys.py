"""PeerKeys: whose keys open the control port, and as what; invitations are made, run out and are revoked here.

Clients hold the key of the connection file and call themselves c-…; agents enrol as e-… with an invitation's key, and
then speak with one of their own, under the name that follows from it. A key that is used under another name is not
heard.
"""

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

_MOST_AGENTS = 4096  # Keys of agents that are remembered; more only come if agents enrol in vain.
_REMEMBERED = 86400.0  # Seconds for which who comes with a line that has expired is told so.
_KEY_LENGTH = 40  # Characters of a public key.
_read_enrol: Unpacker[Enrol] = Unpacker(Enrol)


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

    def invite(self, ports: tuple[int, int], listening: tuple[str, int] | None, seconds: float) -> JoinLine:
        """A new line with its own key. ``listening``: host and number of the public port; None for this host only."""
        since = time.time() - _REMEMBERED
        self._gate.forget(i.key.public for i in self.invitations if i.expires < since)
        remembered = tuple(i for i in self.invitations if i.expires >= since)
        invitation = Invitation.make(seconds or self._charter.settings.invitation)
        self._gate.allow((invitation.key.public,), called="e-", until=invitation.expires)
        self.invitations = (*remembered, invitation)
        self._on_change()
        hosts: tuple[str, ...] = (LOOPBACK,)
        if listening is not None:
            ports = (listening[1], listening[1])
            hosts = own_addresses() if listening[0] == "*" else (listening[0],)
        return JoinLine(self._charter.cluster, hosts, *ports, self._charter.keys.public, invitation.key)

    def revoke(self) -> None:
        """Make every join line printed so far void, and agents that enrolled with one unless they have a place."""
        self._gate.forbid(i.key.public for i in self.invitations)
        self.invitations = ()
        self._keep_agents()
        self._on_change()

    def _keep_agents(self, newest: int = 0) -> None:
        """Forget the keys of all agents but those that have a place, and the newest."""
        here = self._here()
        kept = {k for k in self.agents if agent_name(k) in here}.union(self.agents[len(self.agents) - newest :])
        self._gate.forget(k for k in self.agents if k not in kept)
        self.agents = tuple(k for k in self.agents if k in kept)

    def enrol(self, data: bytes) -> Message:
        """Accept the key of an agent that enrols, or reject it with the reason."""
        try:
            request: Enrol = _read_enrol(data)
        except ProtocolError:
            return Rejected(f"it speaks another protocol than jdist {__version__}, which the controller has")
        if (request.protocol, request.version) != (PROTOCOL, self._charter.version):
            theirs = f"it has jdist {request.version} (protocol {request.protocol})"
            return Rejected(f"{theirs}, the controller {self._charter.version} ({PROTOCOL})")
        others = {self._charter.for_clients.public, *(i.key.public for i in self.invitations)}
        if len(request.key) != _KEY_LENGTH or request.key in others:
            return Rejected("it has no key of its own")
        if request.key in self.agents:
            return Enrolled()
        if len(self.agents) >= _MOST_AGENTS:
            self._keep_agents(newest=_MOST_AGENTS // 2)
        self._gate.allow((request.key,), called=agent_name(request.key))
        self.agents = (*self.agents, request.key)
        self._on_change()
        return Enrolled()
