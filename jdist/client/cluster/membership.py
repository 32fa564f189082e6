"""Membership: ranks of a running cluster are replaced, added and removed."""

from __future__ import annotations

from collections.abc import Sequence

from jdist.client.cluster.attachment import Ranks
from jdist.client.cluster.life import Life
from jdist.client.history import Remark
from jdist.client.lifecycle import relaunch, resize
from jdist.client.lifecycle.invite import invite
from jdist.client.link import new_request
from jdist.core.errors import UsageError
from jdist.core.messages.membership import Resized, Restart
from jdist.core.ranks import describe_ranks
from jdist.core.settings import REFORM_TIMEOUT


class Membership(Life):
    """The ranks that an attached cluster has."""

    async def restart(self, ranks: Ranks = None) -> None:
        """Replace the processes of ``ranks``; their namespaces are lost, the world is re-formed.

        Where a rank's node has lost its agent, another is started, for all of the node's ranks. Raises UsageError with
        the way to do that by hand if it cannot be done from here.
        """
        asked = chosen = self.select(ranks)
        gone = sorted({n for n in map(self.topology.place, chosen) if not self.facts.hostnames[n]})
        if gone:
            await relaunch.bring_back(self.link, self._launcher, gone, REFORM_TIMEOUT)
            chosen = tuple(r for r in chosen if self.topology.place(r) not in gone)
        if chosen:
            await self.link.request(Restart(new_request(), chosen), REFORM_TIMEOUT)
        self.history.add(Remark(f"{describe_ranks(asked)} replaced by fresh ones"))
        await self._settled()

    async def invite(self, seconds: float | None = None, *, revoke: bool = False) -> str:
        """A line with which agents of this cluster join, on any host, for ``seconds`` (default: a day).

        ``revoke``: no line that was made before can be used any more; nodes that have joined stay. The line holds keys.
        """
        if seconds is not None and seconds <= 0:
            raise UsageError(f"a join line is of use for more than 0 s, not {seconds}")
        return await invite(self.link, seconds=seconds or 0.0, revokes=revoke)

    async def add_node(
        self,
        nproc: int | None = None,
        *,
        launcher: str | None = None,
        launcher_args: Sequence[str] = (),
        fork: bool | None = None,
        timeout: float = 120.0,
    ) -> Resized:
        """Launch one node more, and form the world again with its ranks, which get the highest numbers.

        ``nproc`` ranks, by default as many as the last node has; ``launcher`` and ``fork`` by default as the cluster
        was started; ``timeout`` in seconds. Every other rank keeps its
        number and its names; on the new ones, setup cells have been run and :meth:`restore` brings what replicas hold.
        Raises UsageError (also while a cell runs), LaunchError.
        """
        if nproc is not None and nproc < 1:
            raise UsageError(f"a node has at least one rank, not {nproc}")
        wanted = resize.Wanted(nproc or 0, launcher, tuple(launcher_args), fork)
        resized, launched = await resize.add_node(self.link, wanted, timeout)
        self._added.append(launched)
        self.history.add(Remark("a node added"))
        await self._settled()
        return resized

    async def remove(self, ranks: Ranks) -> Resized:
        """End ``ranks`` for good, and form the world again without them; a node that has none left is released.

        The others keep their names and close up in their order; ``renumbered`` of the answer says ``{old: new}``.
        Raises UsageError (also while a cell runs).
        """
        if ranks is None:
            raise UsageError("say which ranks are to be removed; stop() ends them all")
        chosen = self.select(ranks)
        resized = await resize.remove(self.link, chosen)
        self.history.add(Remark(f"{describe_ranks(chosen)} removed"))
        return resized
