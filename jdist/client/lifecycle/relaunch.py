"""Relaunching: a node whose agent is gone gets another, from the launcher that started it or by hand."""

from __future__ import annotations

from collections.abc import Sequence

from jdist.client import find
from jdist.client.lifecycle.invite import invite
from jdist.client.lifecycle.start import Started, wait_formed
from jdist.client.link import Link
from jdist.core.errors import UsageError
from jdist.launch.base import Launcher, Plan, find_launcher
from jdist.wire.transport.keys import charter_path


async def bring_back(link: Link, launcher: Launcher | None, node_ranks: Sequence[int], timeout: float) -> None:
    """Start an agent for each of these nodes and wait until the world stands.

    Raises LaunchError, and UsageError with the way to do it by hand where ``launcher`` (None: the one that the cluster
    was started with, if this is its controller's host) cannot.
    """
    name = link.connection.name
    nodes = ", ".join(f"node {n}" for n in node_ranks)
    charter = find.charter_of(link.connection)
    if charter is None:
        where = charter_path(find.directory(), name)
        raise UsageError(f"{nodes} of cluster {name} can be brought back from the controller's host only, by {where}")
    settings = charter.settings
    log = str(find.directory() / f"jdist-{name}.log")
    plan = Plan(settings, log)
    launcher = launcher or find_launcher(settings.launcher)(plan)
    launcher.names = () if link.facts is None else link.facts.launcher_names
    line = await invite(link, is_remote=launcher.is_remote)
    for node_rank in node_ranks:
        if not await launcher.relaunch(node_rank, line):
            raise UsageError(
                f"{nodes} of cluster {name} cannot be started again from here; run this there (the line holds keys): "
                f"echo {line} | jdist join --node-rank {node_rank} -"
            )
    try:
        await wait_formed(Started(link, launcher), timeout, None, node_ranks)
    finally:
        await launcher.let_go()
