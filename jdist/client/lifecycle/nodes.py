"""Nodes: replace and remove ranks of a running cluster, add nodes, and invite agents."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from jdist.client import find
from jdist.client.attachment import Attachment, Ranks
from jdist.client.history import Annotation
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.sites import split_name
from jdist.client.lifecycle.start import OnWaiting, Started, Waiting, plan_launch, print_waiting, wait_launched
from jdist.client.link import CONTROLLER, body_of, new_request
from jdist.client.sync import SyncedCode
from jdist.core.errors import LaunchError, Remedy, UsageError
from jdist.core.messages.membership import (
    AbortAddNode,
    AddNode,
    Invite,
    Invited,
    PlaceOpened,
    RemoveRanks,
    Resized,
    Restart,
)
from jdist.core.messages.status import ClusterFacts, StatusReport, StatusRequest
from jdist.core.quantities import format_count
from jdist.core.ranks import describe_ranks
from jdist.core.settings import REFORM_TIMEOUT, Host, Settings
from jdist.launch.base import Launcher, find_launcher
from jdist.launch.hosts import parse_hosts
from jdist.wire.transport.keys import charter_path


class Nodes:
    """The part of a cluster that replaces, adds and removes ranks and nodes."""

    def __init__(self, attachment: Attachment, lifecycle: ClusterLifecycle, code: SyncedCode) -> None:
        self._attachment = attachment
        self._lifecycle = lifecycle
        self._code = code

    async def restart(self, ranks: Ranks = None) -> None:
        """Replace the processes of ``ranks``; their namespaces are lost, the world is re-formed.

        Where a rank's node has lost its agent, another is started, for all of the node's ranks. Raises UsageError with
        the way to do that by hand if it cannot be done from here, and LaunchError.
        """
        topology, hostnames = self._attachment.facts.topology, self._attachment.facts.hostnames
        asked = chosen = self._attachment.select(ranks)
        gone = sorted({n for n in map(topology.place, chosen) if not hostnames[n]})
        if gone:
            await (self._relaunch(gone) if self._attachment.link.host is None else self._relaunch_there(gone))
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
        plan = plan_launch(charter.settings, controller=link.connection.pid)
        launcher = self._lifecycle.launcher or find_launcher(charter.settings.launcher)(plan)
        launcher.node_names = () if link.facts is None else link.facts.launcher_names
        line = await self._invite(is_remote=launcher.is_remote)
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

    async def _relaunch_there(self, node_ranks: Sequence[int]) -> None:
        """Have the controller's host, where the launcher is, start another agent for each of these nodes."""
        said: list[str] = []
        ranks = [r for n in node_ranks for r in self._attachment.facts.topology.ranks_at(n)]
        await self._carry_out_there("restart", [f"--ranks={','.join(map(str, ranks))}"], said.append)
        facts = await self._facts_now()
        if any(not facts.hostnames[n] for n in node_ranks):
            raise LaunchError(self._lifecycle.remote_site.failure(said, "the restart"))

    async def _carry_out_there(self, verb: str, words: Sequence[str], on_text: Callable[[str], object]) -> None:
        """Carry out a command on this cluster at the controller's host. Raises ConnectionLost."""
        _, name = split_name(self._attachment.link.connection.name)
        await self._lifecycle.remote_site.carry_out(verb, words, name or "", on_text)

    async def _facts_now(self) -> ClusterFacts:
        """The cluster's facts, asked for now: those that were broadcast may be older."""
        return (await self._attachment.link.request(StatusRequest(new_request()), StatusReport)).facts

    async def invite(self, seconds: float | None = None, *, revoke: bool = False) -> str:
        """A line with which agents join this cluster, on any host, for ``seconds`` (default: a day). It holds keys.

        ``revoke``: no line that was made before can be used any more; nodes that have joined stay.
        """
        return await self._invite(seconds, revoke=revoke)

    async def _invite(self, seconds: float | None = None, *, revoke: bool = False, is_remote: bool = True) -> str:
        """``is_remote``: the line is for agents on other hosts, too."""
        if seconds is not None and seconds <= 0:
            raise UsageError(f"a join line must be valid for more than 0 s, not {seconds}")
        invite = Invite(is_remote, seconds or 0.0, revoke)
        return (await self._attachment.link.query_one(CONTROLLER, invite, Invited)).line

    async def add_node(
        self,
        nproc: int | None = None,
        *,
        host: str = "",
        launcher: str | None = None,
        launcher_args: Sequence[str] = (),
        fork: bool | None = None,
        timeout: float = 120.0,
        on_progress: OnWaiting | None = None,
    ) -> Resized:
        """Launch one node more, and form the world again with its ranks, which get the highest numbers.

        ``nproc`` ranks, by default as many as the last node has; ``host``, for ssh and mpi, is "c", or "c:2" with its
        ranks; ``launcher`` and ``fork`` by default as the cluster was started. ``on_progress`` is called with what the
        launcher waits for; by default that is written to standard error. Every other rank keeps its number and its
        names; on the new ones, setup cells have been run and :meth:`restore` copies what replicas hold. Raises
        UsageError (also while a cell runs), LaunchError.
        """
        if nproc is not None and nproc < 1:
            raise UsageError(f"a node has at least one rank, not {nproc}")
        if self._attachment.link.host is not None:
            options = {"nproc-per-node": nproc, "host": host, "launcher": launcher, "timeout": timeout}
            words = [f"--{name}={value}" for name, value in options.items() if value not in (None, "")]
            words += [*["--no-fork"] * (fork is False), *(["--", *launcher_args] if launcher_args else [])]
            return await self._add_node_there(words, on_progress or print_waiting)
        link = self._attachment.link
        charter = find.charter_of(link.connection)
        settings = charter.settings if charter is not None else Settings(name=link.connection.name)
        if launcher is not None or launcher_args:
            launcher = settings.launcher if launcher is None else launcher
            settings = msgspec.structs.replace(settings, launcher=launcher, launcher_args=tuple(launcher_args))
        if fork is not None:
            settings = msgspec.structs.replace(settings, fork=fork)
        named = _check_host(settings.launcher, host)
        if nproc is None and named is not None and named.slots:
            nproc = named.slots
        pid = link.connection.pid if charter is not None else 0
        message = AddNode(new_request(), nproc or 0, timeout)
        resized = await self._launch_node(settings, message, named, pid, on_progress or print_waiting)
        self._attachment.history.add(Annotation("a node added"))
        await self._code.settled()
        return resized

    async def _add_node_there(self, words: Sequence[str], on_progress: OnWaiting) -> Resized:
        """Have the controller's host, where the launcher is, add a node as ``jdist add-node`` with these words does."""
        before, said = self._attachment.facts.topology.world_size, list[str]()

        def hear(text: str) -> None:
            said.extend(text.splitlines())
            on_progress(Waiting(text, is_instruction=True))  # or a note: the host does not say which

        await self._carry_out_there("add-node", words, hear)
        after = (await self._facts_now()).topology.world_size
        if after <= before:
            raise LaunchError(self._lifecycle.remote_site.failure(said, "add-node"))
        self._attachment.history.add(Annotation("a node added"))
        await self._code.settled()
        added = tuple(range(before, after))
        note = f"{describe_ranks(added)} added; the world has {format_count(after, 'rank')}"
        return Resized(after, {rank: rank for rank in range(before)}, added, (note,))

    async def _launch_node(
        self, settings: Settings, message: AddNode, host: Host | None, controller: int, on_progress: OnWaiting
    ) -> Resized:
        """Launch an agent in the place that the controller opens; end it again if its ranks do not join the world."""
        launcher_class = find_launcher(settings.launcher)
        link = self._attachment.link
        line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        line.set_result(await self._invite(is_remote=launcher_class.is_remote))
        async with contextlib.aclosing(link.answers(message, message.timeout)) as answers:
            node = body_of(await anext(answers), PlaceOpened).node_rank
            try:
                launcher = launcher_class(plan_launch(settings, node, 1, host, controller))
                try:
                    await launcher.launch(line)
                    async with asyncio.timeout(message.timeout):
                        check = _checked(launcher, node, on_progress)
                        resized = body_of(await wait_launched(anext(answers), check), Resized)
                    await launcher.release()
                except BaseException:
                    if link.facts is None or link.facts.nnodes <= node:  # else it is in the world, and stays
                        await launcher.end()
                    raise
            except BaseException as e:
                if not link.lost:
                    link.send(AbortAddNode(message.request))
                if isinstance(e, TimeoutError):
                    late = f"node {node} was not in the world after {message.timeout:.0f} s"
                    raise LaunchError(late, remedies=(Remedy("status", "see what is missing"),)) from None
                raise
        self._lifecycle.added.append(launcher)
        return resized

    async def remove(self, ranks: Ranks) -> Resized:
        """End ``ranks`` for good, and form the world again without them; a node that has none left is released.

        The others keep their names and close up in their order; ``renumbered`` of the answer is ``{old: new}``.
        Raises UsageError (also while a cell runs).
        """
        if ranks is None:
            raise UsageError("say which ranks are to be removed; stop() ends them all")
        chosen = self._attachment.select(ranks)
        resized = await self._attachment.link.request(RemoveRanks(new_request(), chosen), Resized, REFORM_TIMEOUT)
        self._attachment.history.add(Annotation(f"{describe_ranks(chosen)} removed"))
        return resized


def _check_host(launcher: str, text: str) -> Host | None:
    """The host on which the launcher is to start a node; None if it is left open. Raises UsageError."""
    form = find_launcher(launcher).form
    if form.cannot_add:
        raise UsageError(form.cannot_add, remedies=(Remedy("invite", "print a line for one"),))
    if not text:
        return None
    if not form.hosts:
        raise UsageError(f"--host {text}: --launcher {launcher} chooses the host by itself")
    hosts = parse_hosts(text)
    if len(hosts) > 1:
        raise UsageError(f"--host {text}: one node is added at a time; name one host")
    return hosts[0]


def _checked(launcher: Launcher, node: int, on_progress: OnWaiting) -> Callable[[], Awaitable[None]]:
    """A check that the launch has not failed, which also reports what it waits for, whenever that changes."""
    shown = ""

    async def check() -> None:
        nonlocal shown
        instructions = launcher.instructions()
        if (text := instructions or launcher.describe()) != shown:
            shown = text
            on_progress(Waiting(text, is_instruction=bool(instructions)))
        if failures := launcher.failures():
            raise LaunchError(f"node {node} did not join: {'; '.join(failures.values())}")

    return check
