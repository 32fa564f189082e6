"""Life of clusters: start, attach, list, detach, stop."""

from __future__ import annotations

import contextlib
import queue
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from jdist.client import find
from jdist.client.blocking import Cluster, bridge
from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Progress, Waiting
from jdist.core.errors import UsageError
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.quantities import ArgumentParser
from jdist.core.ranks import RankSet
from jdist.core.settings import Host
from jdist.launch.hosts import read_hostfile
from jdist.notebook.options import start_parser
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed, worded
from jdist.notebook.text.start_progress import StartLine
from jdist.notebook.text.tables import table
from jdist.notebook.verbs.ranks import lost

Words = list[str]

_UNDO = 20.0
"""Seconds for a start that is interrupted to end what it began."""


def start(s: Session, words: Words) -> None:
    """start a cluster: -n ranks per node, -N nodes, --backend, --init-method, --launcher, --name, --timeout"""
    before, _, after = split_at(words, "--")
    o = start_parser(typed("start")).parse(before)
    if s.current is not None and not s.current.asynchronous.link.lost:
        ways = f"{typed('stop')} ends it, {typed('detach')} leaves it running"
        raise UsageError(f"cluster {s.current.name} is in use here: {ways}")
    events: queue.SimpleQueue[Progress] = queue.SimpleQueue()
    work = AsyncCluster.start(kind=s.kind, on_progress=events.put, **start_options(o, after))
    s.use(Cluster(_show_start(s, work, events, o.timeout)))


def start_options(o: Namespace, after: Words) -> dict[str, Any]:
    """What a start's words say, as arguments of :meth:`AsyncCluster.start`; ``after`` are those after ``--``."""
    return {
        "nproc_per_node": o.nproc_per_node,
        "nnodes": o.nnodes,
        "backend": o.backend,
        "init_method": o.init_method,
        "launcher": o.launcher,
        "name": o.name,
        "timeout": o.timeout,
        "fork": not o.no_fork,
        "on_death": o.on_death,
        "warm": not o.no_warm,
        "launcher_args": after,
        "hosts": _hosts(o.hosts, o.hostfile),
        "env": _environment(o.env),
        "min_nodes": o.min_nodes,
        "bind_host": o.bind,
        **({} if o.idle_timeout is None else {"idle_timeout": o.idle_timeout}),
    }


def _show_start(s: Session, work: Any, events: queue.SimpleQueue[Progress], timeout: float | None) -> AsyncCluster:
    """Follow a start on the screen; interrupting it ends what was started."""
    future, ended = bridge().begin(work)
    future.add_done_callback(lambda _: events.put(None))  # type: ignore[arg-type]
    line = StartLine(s.screen, timeout)
    facts: ClusterFacts | None = None
    waiting = ""
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                match events.get(timeout=1.0):
                    case ClusterFacts() as facts:
                        pass
                    case Notice() as notice:
                        s.say(worded(notice))
                    case Waiting(text) if text != waiting:
                        waiting = text
                        if not s.screen.is_live:
                            s.say(text)
            if future.done():
                break
            if facts is not None:
                line.note(facts, waiting)
        cluster: AsyncCluster = future.result()
    except BaseException:
        if future.cancel():
            s.say("the start was interrupted; ending what it began")
            ended.wait(_UNDO)
        raise
    line.end(cluster.facts, cluster.start_seconds)
    while not events.empty():  # what was said with the last step
        if isinstance(said := events.get(), Notice):
            s.say(worded(said))
    return cluster


def attach(s: Session, words: Words) -> None:
    """use a running cluster, after a kernel restart or from a second notebook: attach [NAME]"""
    p = ArgumentParser(typed("attach"), "Use a running cluster.")
    p.add_argument("name", nargs="?")
    o = p.parse(words)
    if s.current is not None:
        s.current.revived()
    if s.current is not None and not s.current.asynchronous.link.lost and o.name in (None, s.current.name):
        s.say(f"cluster {s.current.name} is in use here already")
        return
    cluster = Cluster.attach(o.name, kind=s.kind)  # before letting go of the one in use: there may be none of that name
    if s.current is not None:
        s.current.detach()
    s.use(cluster)
    s.say(
        f"attached to cluster {cluster.name}: {cluster.world_size} ranks on {len(cluster.nodes)} nodes · "
        f"{cluster.backend} · {cluster.facts.phase}; every name on a rank that has lived on is as it was left"
    )
    found = cluster.status()
    for row in found.ranks:
        if row.death:
            s.say(f"rank {row.rank} {lost(row)}")
    for number, state, ranks, elapsed in found.runs:
        where = f"run {number} on ranks {RankSet(ranks)} is {state}, {elapsed:.0f} s"
        s.say(f"{where}; its output is in {typed('logs')}, and {typed('interrupt')} stops it")


def list_(s: Session, words: Words) -> None:
    """list this user's running clusters"""
    ArgumentParser(typed("list"), "This user's running clusters.").parse(words)
    rows = [[c.name, f"{c.host}:{c.control_port}", c.pid, c.version] for c in find.connections().values()]
    for c in find.restartable().values():
        state = f"gone, restartable for {find.restart_time(c):.0f} s: {typed('attach')} {c.name}"
        rows.append([c.name, f"{c.host}:{c.control_port}", state, c.version])
    if not rows:
        s.say(f"no cluster runs; {typed('start')} makes one")
        return
    s.screen.show(table(["name", "controller", "pid", "jdist"], rows))


def detach(s: Session, words: Words) -> None:
    """leave the cluster running and let go of it"""
    ArgumentParser(typed("detach"), "Let go of the cluster.").parse(words)
    cluster = s.cluster
    name = cluster.name
    cluster.detach()
    s.use(None)
    s.say(f"detached; cluster {name} runs on: {typed('attach')} {name}")


def stop(s: Session, words: Words) -> None:
    """end the cluster: no process is left: stop [NAME]"""
    p = ArgumentParser(typed("stop"), "End a cluster.")
    p.add_argument("name", nargs="?")
    o = p.parse(words)
    current = s.current
    if current is not None and o.name in (None, current.name):
        current.revived()
        if current.asynchronous.link.lost:
            s.use(None)
            s.say(f"cluster {current.name} is gone already")
            return
        cluster = current
    else:
        cluster = Cluster.attach(o.name or _the_only_one(s), kind=s.kind)
    name = cluster.name
    try:
        cluster.stop()
    finally:
        if cluster is current:
            s.use(None)
    s.say(f"cluster {name} is stopped")


def _the_only_one(s: Session) -> str:
    """The cluster that a command line means without a name; a notebook must name one that it does not use."""
    names = list(find.connections() | find.restartable())
    if s.kind == "command line" and len(names) == 1:
        return names[0]
    there = f"running: {', '.join(names)}; {typed('stop NAME')} ends one" if names else "none is running"
    raise UsageError(f"no cluster is in use here; {there}")


def _hosts(text: str, path: str | None) -> str | tuple[Host, ...]:
    if path is None:
        return text
    if text:
        raise UsageError(f"{typed('start')}: --hosts and --hostfile say the same in two ways; use one")
    return read_hostfile(path)


def _environment(given: Sequence[str]) -> dict[str, str]:
    for word in given:
        if not word.partition("=")[1] or not word.partition("=")[0].isidentifier():
            raise UsageError(f"{typed('start')}: --env {word!r}: write NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in given)}


def split_at(words: Words, mark: str) -> tuple[Words, str, Words]:
    """The words before the mark, the mark if it is there, the words after it."""
    if mark not in words:
        return words, "", []
    at = words.index(mark)
    return words[:at], mark, words[at + 1 :]
