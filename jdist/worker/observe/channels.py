"""Channels: how many messages this rank has begun to send and to receive since the world was formed, by channel.

torch numbers collectives, but no sends and receives. Counted here, the n-th send of a channel meets the n-th receive of
its other end, so that it is known which half of a message is missing.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jdist.core.observation import ANY, Channel
from jdist.worker.compat import torch as torch_compat

if TYPE_CHECKING:
    from jdist.worker.observe.call_log import LoggedCall

_Key = tuple[str, bool, int, int]  # Group, whether it sends, peer, tag.


class ChannelProgress:
    """The messages of one channel."""

    def __init__(self) -> None:
        self.begun = 0
        self.taken: dict[int, int] = {}  # Of receives from any rank: from whom they got how many.


class Channels:
    """The counts of all channels. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[_Key, ChannelProgress] = {}
        self._keys: dict[Any, _Key | None] = {}  # By what was passed besides the tensor.

    def begin(self, call: "LoggedCall") -> ChannelProgress | None:
        """Count a message and number its call; None if this rank is not in the group."""
        key = self._key(call)
        if key is None:
            return None
        with self._lock:
            count = self._counts.setdefault(key, ChannelProgress())
            count.begun += 1
            call.nth = count.begun
        return count

    def take_back(self, count: ChannelProgress) -> None:
        """The call has failed before a message was under way."""
        with self._lock:
            count.begun -= 1

    def is_from_any(self, call: "LoggedCall") -> bool:
        """Whether the call receives from any rank."""
        key = self._key(call)
        return key is not None and key[2] == ANY

    def took(self, counts: Iterable[ChannelProgress], source: object) -> None:
        """Record that receives from any rank got their messages from ``source``, if that is a rank."""
        if not isinstance(source, int) or source < 0:
            return
        with self._lock:
            for count in counts:
                count.taken[source] = count.taken.get(source, 0) + 1

    def read(self, pending: Iterable["LoggedCall"]) -> tuple[Channel, ...]:
        """All channels; ``pending`` are the messages that are not known to have arrived."""
        in_flight: dict[_Key | None, int] = {}
        for call in pending:
            key = self._key(call)
            in_flight[key] = in_flight.get(key, 0) + 1
        with self._lock:
            return tuple(
                Channel(*key, count.begun, in_flight.get(key, 0), tuple(sorted(count.taken.items())))
                for key, count in self._counts.items()
            )

    def _key(self, call: "LoggedCall") -> _Key | None:
        given = (call.op, call.args[1:], *(item for item in call.kwargs.items() if item[0] != "tensor"))
        if given not in self._keys:
            self._keys[given] = self._resolved(call)
        return self._keys[given]

    @staticmethod
    def _resolved(call: "LoggedCall") -> _Key | None:
        arguments = call.arguments
        group = arguments.get("group")
        name = torch_compat.world_name() if group is None else getattr(group, "name", None)
        if name is None:
            return None
        ranks = {found: members for _, found, members in torch_compat.groups()}
        return name, call.op == "isend", peer(arguments, ranks.get(name, ())), arguments.get("tag") or 0


def peer(arguments: Mapping[str, Any], members: tuple[int, ...]) -> int:
    """The global rank of the send's or receive's other end; ``members`` are the group's ranks in its own order."""
    ends = (global_rank(arguments, end, members) for end in ("src", "dst") if end in arguments)
    return next((rank for rank in ends if rank is not None), ANY)


def global_rank(arguments: Mapping[str, Any], end: str, members: tuple[int, ...]) -> int | None:
    """The global rank of ``src`` or ``dst``, also where the rank in the group was given."""
    inside = arguments.get(f"group_{end}")
    if inside is None:
        return arguments.get(end)
    return members[inside] if 0 <= inside < len(members) else None
