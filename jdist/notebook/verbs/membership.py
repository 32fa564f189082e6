"""Verbs of membership: nodes and ranks are added and removed, and nodes are invited to join."""

import contextlib
import os
import sys
from argparse import Namespace

from jdist.client.lifecycle.start import Waiting, join_here
from jdist.core.errors import UsageError, nearest
from jdist.core.quantities import parse_count, parse_duration
from jdist.core.ranks import RankSet
from jdist.core.settings import Settings
from jdist.launch.pods import add_pod_arguments, objects, pods_of, to_yaml
from jdist.notebook.options import at_dashes
from jdist.notebook.output.screen import Replaceable, plain
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.registry import RANKS, Words, option, verb
from jdist.wire.transport.invitations import exposure

_TIMEOUT = 120.0
_PLATFORMS = ("kubernetes",)
_EXPIRES = 30 * 86400.0
_NPROC = "--nproc-per-node"
_NO_FORK = option("--no-fork", action="store_true", help="start workers as fresh interpreters")


@verb(
    "add-node",
    option("-n", _NPROC, type=parse_count, metavar="N", help="number of its ranks; default: as on the last node"),
    option("--host", default="", help="where it is to be, for ssh and mpi: HOST, or HOST:RANKS"),
    option("--launcher", help="how to start its agent; default: like the cluster's others"),
    _NO_FORK,
    option("--timeout", type=parse_duration, default=_TIMEOUT, help="how long to wait for it; default 2m"),
    split=at_dashes,
)
def add_node(s: Session, o: Namespace) -> None:
    """add a node: add-node [-n RANKS] [--host HOST] [--launcher NAME]; its ranks get the highest numbers

    With --launcher join, the line to run on the node is printed.
    """
    spot = Replaceable(s.screen)

    def on_progress(waiting: Waiting) -> None:
        if waiting.is_instruction or spot.is_live:
            spot.show(plain(waiting.text))

    options = {"launcher_args": o.rest, "fork": False if o.no_fork else None, "timeout": o.timeout}
    resized = s.cluster.add_node(o.nproc_per_node, host=o.host, launcher=o.launcher, on_progress=on_progress, **options)
    new = RankSet(resized.added)
    restore = f"{typed('restore')} {new} --from 0 NAMES copies variables from a replica"
    spot.show(plain(f"{resized}\nsetup cells have been run on {new}; {restore}"))


@verb("remove", RANKS)
def remove(s: Session, o: Namespace) -> None:
    """remove ranks permanently: remove -r RANKS; the others are renumbered and keep their variables"""
    if o.ranks is None and o.group is None:
        how = f"say which ranks, such as -r 3 or -r node=1; {typed('stop')} ends them all"
        raise UsageError(f"{typed('remove')}: {how}")
    s.echo(str(s.cluster.remove(s.cluster.select(o.ranks, o.group))))


@verb(
    "invite",
    option("--expires", type=parse_duration, help="how long the line can be used; default: a day"),
    option("--revoke", action="store_true", help="revoke all lines that were printed before"),
)
def invite(s: Session, o: Namespace) -> None:
    """print a line that lets nodes join this cluster: invite [--expires 2h] [--revoke]"""
    line = s.cluster.invite(o.expires, revoke=o.revoke)
    s.echo(f"on the node (whoever has the line can join): echo {line} | jdist join -")


@verb(
    "join",
    option("line", help="the join line, or a file that contains it"),
    option("-n", _NPROC, type=parse_count, default=0, metavar="N", help="ranks; default: as the cluster says"),
    option("--node-rank", type=int, default=-1, metavar="K", help="the node's number; default: any"),
    attaches=None,
)
def join(s: Session, o: Namespace) -> None:
    """make this server a node of the cluster that printed the line: join LINE [-n RANKS] [--node-rank K]

    The node runs beside this notebook until that cluster ends.
    """
    if exposed := exposure(o.line):
        s.echo(exposed)
    try:
        pid = join_here(o.line, o.nproc_per_node, o.node_rank)
    except UsageError as e:
        raise UsageError(f"{typed('join')}: {e}") from None
    s.echo(f"this server is a node of that cluster now (agent {pid}); it ends with the cluster, or with this server")


def _check_platform(words: Words) -> tuple[Words, Words]:
    if words and not words[0].startswith("-") and words[0] not in _PLATFORMS:
        raise UsageError(f"{typed('manifest')}: there is none for {words[0]!r}{nearest(words[0], _PLATFORMS)}")
    return words, []


@verb(
    "manifest",
    option("platform", choices=_PLATFORMS),
    option("-N", "--nnodes", type=parse_count, metavar="M", help="pods; default: as many as the cluster has nodes"),
    option("-n", _NPROC, type=parse_count, default=0, metavar="N", help="ranks in each pod"),
    option("--name", default="", help="name of the objects; default: jdist- and the cluster's name"),
    option("--expires", type=parse_duration, default=_EXPIRES, help="how long pods can join; default 30 days"),
    option("--line", default="", metavar="FILE", help="a file that contains the join line, or -; default: a new line"),
    _NO_FORK,
    option("-o", "--output", default="", metavar="FILE", help="write to FILE, which only you can read"),
    add_pod_arguments,
    attaches=lambda words: "--line" not in words,
    split=_check_platform,
)
def manifest(s: Session, o: Namespace) -> None:
    """print YAML that runs a cluster's nodes on Kubernetes: manifest kubernetes -N 2 -n 8 --image IMAGE [-o FILE]

    It has a StatefulSet, a Service and a Secret; the pods join this cluster.
    """
    if o.line and not (o.nnodes and o.name):
        raise UsageError(f"{typed('manifest')}: with --line, say -N and --name, too")
    name = o.name or f"jdist-{s.cluster.name}".lower().replace("_", "-")
    settings = Settings(name=name, nnodes=o.nnodes or s.cluster.facts.nnodes, fork=not o.no_fork)
    pods = pods_of(o, name, settings, o.nproc_per_node)
    text = to_yaml(objects(pods, _read_line(s, o.line, o.expires)))
    if o.output:
        _write_private(o.output, text)
        s.echo(f"written to {o.output}: kubectl apply -f {o.output} (it holds a join line: whoever has it can join)")
    else:
        s.echo(text.rstrip())


def _read_line(s: Session, path: str, expires: float) -> str:
    if path == "-":
        return sys.stdin.readline()
    if not path:
        return s.cluster.invite(expires)
    try:
        with open(os.path.expanduser(path)) as f:
            return f.readline()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{typed('manifest')}: --line {path} cannot be read: {e}") from None


def _write_private(path: str, text: str) -> None:
    """Write a file of mode 0600, also where it existed with another."""
    path = os.path.expanduser(path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, 0o600)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as f:
            f.write(text)
    except OSError as e:
        raise UsageError(f"{typed('manifest')}: {path} cannot be written: {e}") from None
