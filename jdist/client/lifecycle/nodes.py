"""Nodes: changes of a running cluster: ranks are replaced or removed, nodes added, agents invited, groups made."""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from jdist.client import find
from jdist.client.attachment import Attachment, Ranks
from jdist.client.history import Annotation
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.local_processes import plan_launch
from jdist.client.lifecycle.start import Started, wait_launched
from jdist.client.link import CONTROLLER, body_of, new_request
from jdist.client.sync.code_sync import SyncedCode
from jdist.core.errors import LaunchError, UsageError
from jdist.core.messages.membership import AddNode, Invite, Invited, PlaceOpened, RemoveRanks, Resized, Restart
from jdist.core.ranks import describe_ranks
from jdist.core.remedy import Remedy
from jdist.core.settings import REFORM_TIMEOUT, Settings
from jdist.launch.base import find_launcher
from jdist.wire.transport.keys import charter_path


class Nodes:
    """Changes of an attached cluster's ranks, nodes and groups, as AsyncCluster documents them."""

    def __init__(self, attachment: Attachment, lifecycle: ClusterLifecycle, code: SyncedCode) -> None:
        self._attachment = attachment
        self._lifecycle = lifecycle
        self._code = code

    async def restart(self, ranks: Ranks) -> None:
        topology, hostnames = self._attachment.facts.topology, self._attachment.facts.hostnames
        asked = chosen = self._attachment.select(ranks)
        gone = sorted({n for n in map(topology.place, chosen) if not hostnames[n]})
        if gone:
            await self._relaunch(gone)
            chosen = tuple(r for r in chosen if topology.place(r) not in gone)
        if chosen:
            await self._attachment.link.request(Restart(new_request(), chosen), object, REFORM_TIMEOUT)
        self._attachment.history.add(Annotation(f"{describe_ranks(asked)} replaced by fresh ones"))
        await self._code.settled()

    async def _relaunch(self, node_ranks: Sequence[int]) -> None:
        """Start another agent for each of these nodes, and wait until the world is formed."""
        link = self._attachment.link
        name = link.connection.name
        nodes = ", ".join(f"node {n}" for n in node_ranks)
        charter = find.charter_of(link.connection)
        if charter is None:
            by = charter_path(find.directory(), name)
            raise UsageError(f"{nodes} of cluster {name} can be brought back from the controller's host only, by {by}")
        launcher = self._lifecycle.launcher or find_launcher(charter.settings.launcher)(plan_launch(charter.settings))
        launcher.node_names = () if link.facts is None else link.facts.launcher_names
        line = await self.invite(is_remote=launcher.is_remote)
        for node_rank in node_ranks:
            if not await launcher.relaunch(node_rank, line):
                raise UsageError(
                    f"{nodes} of cluster {name} cannot be started again from here; run this there (the line holds "
                    f"keys): echo {line} | jdist join --node-rank {node_rank} -"
                )
        try:
            await Started(link, launcher).wait_formed(REFORM_TIMEOUT, None, node_ranks)
        finally:
            await launcher.release()

    async def invite(self, seconds: float | None = None, *, revoke: bool = False, is_remote: bool = True) -> str:
        """``is_remote``: the line is for agents on other hosts, too."""
        if seconds is not None and seconds <= 0:
            raise UsageError(f"a join line must be valid for more than 0 s, not {seconds}")
        invite = Invite(is_remote, seconds or 0.0, revoke)
        return (await self._attachment.link.query_one(CONTROLLER, invite, Invited)).line

    async def add(
        self, nproc: int | None, launcher: str | None, arguments: Sequence[str], *, fork: bool | None, timeout: float
    ) -> Resized:
        if nproc is not None and nproc < 1:
            raise UsageError(f"a node has at least one rank, not {nproc}")
        link = self._attachment.link
        charter = find.charter_of(link.connection)
        settings = charter.settings if charter is not None else Settings(name=link.connection.name)
        if launcher is not None or arguments:
            launcher = settings.launcher if launcher is None else launcher
            settings = msgspec.structs.replace(settings, launcher=launcher, launcher_args=tuple(arguments))
        if fork is not None:
            settings = msgspec.structs.replace(settings, fork=fork)
        resized = await self._launch_node(settings, AddNode(new_request(), nproc or 0, timeout))
        self._attachment.history.add(Annotation("a node added"))
        await self._code.settled()
        return resized

    async def _launch_node(self, settings: Settings, message: AddNode) -> Resized:
        """Launch an agent in the place that the controller opens; end it again if its ranks do not join the world."""
        launcher_class = find_launcher(settings.launcher)
        line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        line.set_result(await self.invite(is_remote=launcher_class.is_remote))
        async with contextlib.aclosing(self._attachment.link.answers(message, message.timeout)) as answers:
            node = body_of(await anext(answers), PlaceOpened).node_rank
            launcher = launcher_class(plan_launch(settings, node, 1))

            async def check() -> None:
                if failures := launcher.failures():
                    raise LaunchError(f"node {node} did not join: {'; '.join(failures.values())}")

            try:
                await launcher.launch(line)
                async with asyncio.timeout(message.timeout):
                    resized = body_of(await wait_launched(anext(answers), check), Resized)
                await launcher.release()
            except BaseException as e:
                await launcher.end()
                if isinstance(e, TimeoutError):
                    late = f"node {node} was not in the world after {message.timeout:.0f} s"
                    raise LaunchError(late, remedies=(Remedy("status", "see what is missing"),)) from None
                raise
        self._lifecycle.added.append(launcher)
        return resized

    async def remove(self, ranks: Ranks) -> Resized:
        if ranks is None:
            raise UsageError("say which ranks are to be removed; stop() ends them all")
        chosen = self._attachment.select(ranks)
        resized = await self._attachment.link.request(RemoveRanks(new_request(), chosen), Resized, REFORM_TIMEOUT)
        self._attachment.history.add(Annotation(f"{describe_ranks(chosen)} removed"))
        return resized
