"""Verbs of a cluster's lifecycle: start, attach, list, detach, stop."""

import contextlib
import os
import queue
from argparse import Namespace
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec.structs import replace

from jdist.client.cluster import AsyncCluster, Cluster, start_at
from jdist.client.lifecycle.lifecycle import ClusterLifecycle, EarlierCluster, find_earlier, is_same_start, keeps
from jdist.client.lifecycle.sites import AT, list_at, split_name
from jdist.client.lifecycle.start import Progress, Waiting, make_settings, start_words
from jdist.client.remote.host import choose_python, open_host
from jdist.client.threads import bridge
from jdist.core.errors import ConnectionLost, Remedy, UsageError
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.quantities import format_count
from jdist.core.ranks import RankSet
from jdist.core.settings import Settings
from jdist.core.table import Table
from jdist.notebook.options import add_at_options, add_start_options, at_dashes, start_options
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.progress import StartProgress
from jdist.notebook.session import Session
from jdist.notebook.text.cluster_text import describe_loss
from jdist.notebook.text.remedy_text import arrows, typed, worded
from jdist.notebook.verbs.registry import never, option, verb

_NAME = option("name", nargs="?", help="the cluster's name")
_UNDO = 20.0  # Seconds for a start that is interrupted to end what it began.


@verb(
    "start",
    add_start_options,
    add_at_options,
    option("--keep", action="store_true", help="leave what an earlier kernel of this notebook has started"),
    attaches=never,
    split=at_dashes,
)
def start(s: Session, o: Namespace) -> None:
    """start a cluster and form the world: start [-n RANKS] [-N NODES] [--launcher NAME] [--backend B] [--at HOST]

    With --at, the cluster lives on that host, as if it was started in a login there: its launchers, hosts and paths are
    that host's, and it goes on while this computer sleeps.

    If this notebook uses a cluster that was started with the same options, that goes on. One that an earlier kernel of
    this notebook has started with them is stopped first, unless it is in use, or --keep is given, or JDIST_KEEP is set.
    """
    o.at, _ = host_of(o)
    hostfile, o.hostfile = o.hostfile if o.at else None, None if o.at else o.hostfile
    options = start_options(o)
    settings = make_settings(**{name: value for name, value in options.items() if name != "timeout"})
    is_named = o.name is not None
    if (current := s.attached) is not None:
        _go_on(s, current, is_same=_was_started_so(current, settings, is_named=is_named))
        return
    with contextlib.ExitStack() as connected:
        if o.at:
            host = bridge().call(open_host(o.at))
            connected.callback(bridge().loop.call_soon_threadsafe, host.release)
        if not keeps(o.keep or None) and not _end_earlier(s, settings, is_named=is_named, at=o.at):
            return
        if not o.at:
            start_cluster(s, {**options, "keep": True})
            return
        start_cluster_at(s, o.at, options, hostfile)


def host_of(o: Namespace, name: str | None = None) -> tuple[str, str | None]:
    """The host that the user names, or the environment, "" for this one; and the cluster's name there.

    It is remembered which Python is to be started at the host.
    """
    host, local = split_name(name, str(os.environ.get(AT, "") if o.at is None else o.at))
    bridge().call(choose_python(host, o.python, install=o.install))
    return host, local


def _was_started_so(cluster: Cluster, settings: Settings, *, is_named: bool) -> bool:
    known = cluster.asynchronous.part(ClusterLifecycle).settings
    if known is None:  # it was started on another host
        return False
    at, _ = split_name(cluster.name)
    return is_same_start(settings if is_named else replace(settings, name=known.name), known, is_named=True, at=at)


def _go_on(s: Session, cluster: Cluster, *, is_same: bool) -> None:
    """Say that a cluster is in use here already. Raises UsageError if it has other options than the user asks for."""
    if not is_same:
        how = f"{typed('stop')} ends it, {typed('detach')} leaves it running"
        raise UsageError(f"cluster {cluster.name} is in use here, with other options: {how}")
    remedies = Remedy("restart", "start with fresh ranks"), Remedy("stop", "end it")
    told = f"cluster {cluster.name} is in use here already: {_described(cluster)}; variables are unchanged"
    s.echo("\n".join([told, *arrows(remedies)]))
    _follow_unfinished(s, cluster)


def _described(cluster: Cluster) -> str:
    ranks, nodes = format_count(cluster.world_size, "rank"), format_count(len(cluster.nodes), "node")
    return f"{ranks} on {nodes} · {cluster.backend} · {cluster.facts.phase}"


def _end_earlier(s: Session, settings: Settings, *, is_named: bool, at: str) -> bool:
    """Stop what an earlier kernel of this notebook has left; ask where it is in use. False: the user uses that."""
    found, notices = bridge().call(find_earlier(settings, is_named=is_named, at=at))
    for notice in notices:
        s.echo(worded(notice))
    try:
        for earlier in found:
            choice = _ask(s, earlier) if earlier.use else "end"
            if choice == "attach":
                attach(s, Namespace(name=earlier.name, at=None, python="", install=False))
                return False
            s.echo(worded(bridge().call(earlier.end() if choice == "end" else earlier.leave())))
        return True
    finally:
        for earlier in found:
            bridge().call(earlier.leave())


def _ask(s: Session, earlier: EarlierCluster) -> str:
    """What to do with a cluster that is in use: "end", "attach" or "keep"; the last where input is not possible."""
    question = f"cluster {earlier.name} of an earlier kernel of this notebook is in use: {earlier.use}\n"
    question += "end it, attach to it, or keep it and start another one? end/attach/keep [keep]: "
    try:
        while True:
            answer = s.screen.ask(question, is_password=False).strip().lower() or "keep"
            for choice in ("end", "attach", "keep"):
                if choice.startswith(answer):
                    return choice
    except (NotImplementedError, EOFError):  # no front end takes input, as under nbconvert
        return "keep"


def start_cluster(s: Session, options: dict[str, Any]) -> Cluster:
    """Start a cluster for the session, shown on its screen; ``options`` as :meth:`AsyncCluster.start` takes them."""
    return _start_by(s, partial(AsyncCluster.start, **options), options.get("timeout"))


def start_cluster_at(s: Session, host: str, options: dict[str, Any], hostfile: str | None) -> Cluster:
    """Start a cluster at another host, as :func:`start_cluster` does here; ``hostfile`` is a path there."""
    own = {name: value for name, value in options.items() if name not in ("launcher_args", "name")}
    words = [*(["--hostfile", hostfile] if hostfile else []), *start_words(own, options["launcher_args"])]
    return _start_by(s, partial(start_at, host, words, options["name"]), options.get("timeout"))


def _start_by(s: Session, begin: Callable[..., Coroutine[Any, Any, AsyncCluster]], timeout: float | None) -> Cluster:
    events: queue.SimpleQueue[Progress] = queue.SimpleQueue()
    cluster = Cluster(_show_start(s, begin(kind=s.kind, on_progress=events.put), events, timeout))
    s.use(cluster)
    return cluster


def _show_start(s: Session, work: Any, events: queue.SimpleQueue[Progress], timeout: float | None) -> AsyncCluster:
    """Follow a start on the screen; interrupting it ends what was started."""
    future, ended = bridge().begin(work)
    future.add_done_callback(lambda _: events.put(None))  # type: ignore[arg-type]
    line = StartProgress(s.screen, timeout)
    facts: ClusterFacts | None = None
    waiting = ""
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                match events.get(timeout=1.0):
                    case ClusterFacts() as facts:
                        pass
                    case Notice() as notice:
                        s.echo(worded(notice))
                    case Waiting(text) if text != waiting:
                        waiting = text
                        if not s.screen.is_live:
                            s.echo(text)
            if future.done():
                break
            if facts is not None or waiting:
                line.update(facts, waiting)
        cluster: AsyncCluster = future.result()
    except BaseException:
        if future.cancel():
            s.echo("the start was interrupted; ending what it began")
            ended.wait(_UNDO)
        raise
    line.finish(cluster.facts, cluster.start_seconds)
    while not events.empty():  # notices that came with the last step
        if isinstance(late := events.get(), Notice):
            s.echo(worded(late))
    return cluster


@verb("attach", _NAME, add_at_options, attaches=never)
def attach(s: Session, o: Namespace) -> None:
    """use a running cluster, after a kernel restart or from a second notebook: attach [NAME] [--at HOST]"""
    attached = s.attached
    host, name = host_of(o, o.name)
    asked = f"{host}:{name or ''}" if host else name
    if attached is not None and asked in (None, attached.name):
        s.echo(f"cluster {attached.name} is in use here already")
        _follow_unfinished(s, attached)
        return
    cluster = Cluster.attach(asked, kind=s.kind)  # before detaching from the one in use: it may not exist
    if s.current is not None:
        s.current.detach()
    s.use(cluster)
    s.echo(f"attached to cluster {cluster.name}: {_described(cluster)}; variables on surviving ranks are unchanged")
    for row in cluster.status().ranks:
        if row.death:
            s.echo(f"rank {row.rank} {describe_loss(row)}")
    _follow_unfinished(s, cluster)


def _follow_unfinished(s: Session, cluster: Cluster) -> None:
    """Show what becomes of the runs that this notebook does not follow yet."""
    for number, state, ranks, elapsed in cluster.status().runs:
        where = f"run {number} on ranks {RankSet(ranks)} is {state}, {elapsed:.0f} s"
        if s.kind != "notebook":
            s.echo(f"{where}; its output is in {typed('logs')}, and {typed('interrupt')} stops it")
            continue
        if cluster.asynchronous.is_following(number):
            continue
        with contextlib.suppress(UsageError):  # it is over since
            notice = f"it began before this notebook attached; its earlier output is in {typed('logs')}"
            s.last_run = cluster.follow(number)
            RunDisplay(
                cluster, s.last_run, s.screen, notices=[notice], namespace=s.namespace, widgets=s.widgets
            ).follow_in_background()


@verb("list", add_at_options, attaches=never)
def list_(s: Session, o: Namespace) -> None:
    """list this user's running clusters: list [--at HOST]"""
    rows = []
    host, _ = host_of(o)
    for known in bridge().call(list_at(host)).values():
        c = known.connection
        gone = f"gone, restartable for {known.seconds_left:.0f} s: {typed('attach')} {c.name}"
        where = c.hostname if host else f"{c.host}:{c.control_port}"
        rows.append([c.name, where, gone if known.seconds_left else c.pid, c.version])
    if not rows:
        at = f" --at {host}" if host else ""
        s.echo(f"no cluster is running{f' on {host}' if host else ''}; {typed('start')}{at} makes one")
        return
    s.screen.show(Table.of(("name", "controller", "pid", "jdist"), rows).bundle())


@verb("detach", attaches=None)
def detach(s: Session, _: Namespace) -> None:
    """disconnect from the cluster and leave it running"""
    cluster = s.cluster
    name = cluster.name
    cluster.detach()
    s.use(None)
    s.echo(f"detached; cluster {name} runs on: {typed('attach')} {name}")


@verb(
    "stop",
    _NAME,
    add_at_options,
    option("--now", action="store_true", help="kill the ranks: no exit function runs"),
    attaches=never,
)
def stop(s: Session, o: Namespace) -> None:
    """end a cluster with all its processes: stop [NAME] [--at HOST] [--now]"""
    current = s.current
    host, name = host_of(o, o.name)
    is_plain = o.name is None and o.at is None
    if current is not None and (is_plain or _is_meant(current.name, host, name)):
        if s.attached is None:
            s.use(None)
            s.echo(f"cluster {current.name} is gone already")
            return
        cluster = current
    else:
        cluster = Cluster.attach(f"{host}:{name}" if host and name else name or _only_one(s, host), kind=s.kind)
    name = cluster.name
    notices: queue.SimpleQueue[str] = queue.SimpleQueue()
    unwatch = cluster.asynchronous.watch(lambda m: notices.put(worded(m)) if isinstance(m, Notice) else None)
    is_kept = False
    try:
        cluster.stop(now=o.now)
    except ConnectionLost:
        is_kept = not cluster.asynchronous.link.lost  # its host cannot be reached now
        raise
    finally:
        unwatch()
        if cluster is current and not is_kept:
            s.use(None)
        elif cluster is not current and is_kept:
            cluster.detach()
    while not notices.empty():
        s.echo(notices.get())
    s.echo(f"cluster {name} is stopped")


def _is_meant(cluster: str, host: str, name: str | None) -> bool:
    """Whether the cluster, as it is called here, is at the host, and has the name, if there is one."""
    at, called = split_name(cluster)
    return at == host and name in (None, called)


def _only_one(s: Session, host: str) -> str:
    """The name of the only cluster at a site. Raises UsageError: a notebook must name one that it does not use."""
    names = [name for name, known in bridge().call(list_at(host)).items() if known.is_here]
    if (s.kind != "command line" and not host) or len(names) != 1:
        ends = f"{typed('stop NAME')} ends one"
        there = f"running: {', '.join(names)}; {ends}" if names else "none is running"
        raise UsageError(f"no cluster is in use here; {there}")
    return names[0]
