"""Manifests: what an engine is given to run a cluster's nodes: manifest."""

from __future__ import annotations

import contextlib
import os
import sys

from jdist.core.errors import UsageError, nearest
from jdist.core.quantities import ArgumentParser, parse_count, parse_duration
from jdist.core.settings import Settings
from jdist.launch.kubernetes.manifest import add_pod_arguments, check_pods, objects, pods_of, to_yaml
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

Words = list[str]

_ENGINES = ("kubernetes",)
_EXPIRES = 30 * 86400.0


def manifest(s: Session, words: Words) -> None:
    """what runs a cluster's nodes in an engine: manifest kubernetes -N 2 -n 8 --image IMAGE [-o FILE]"""
    if words and not words[0].startswith("-") and words[0] not in _ENGINES:
        raise UsageError(f"{typed('manifest')}: there is none for {words[0]!r}{nearest(words[0], _ENGINES)}")
    p = ArgumentParser(
        typed("manifest"), "A StatefulSet, a Service and a Secret whose pods join this cluster, as YAML."
    )
    p.add_argument("engine", choices=_ENGINES)
    p.add_argument(
        "-N", "--nnodes", type=parse_count, metavar="M", help="pods; default: as many as the cluster has nodes"
    )
    p.add_argument("-n", "--nproc-per-node", type=parse_count, default=0, metavar="N", help="ranks in each")
    p.add_argument("--name", default="", help="of the objects; default: jdist- and the cluster's")
    p.add_argument(
        "--expires", type=parse_duration, default=_EXPIRES, help="how long pods can join with it; default 30 days"
    )
    p.add_argument(
        "--line", default="", metavar="FILE", help="a file that holds the join line, or -; default: a new one"
    )
    p.add_argument("--no-fork", action="store_true", help="start workers as fresh interpreters")
    p.add_argument("-o", "--output", default="", metavar="FILE", help="write it there, for you alone to read")
    add_pod_arguments(p)
    o = p.parse(words)
    if o.line and not (o.nnodes and o.name):
        raise UsageError(f"{typed('manifest')}: with --line, say -N and --name, too")
    name = o.name or f"jdist-{s.cluster.name}".lower().replace("_", "-")
    settings = Settings(name=name, nnodes=o.nnodes or s.cluster.facts.nnodes, fork=not o.no_fork)
    pods = pods_of(o, name, settings, o.nproc_per_node)
    check_pods(pods)
    text = to_yaml(objects(pods, _line(s, o.line, o.expires)))
    if o.output:
        _write(o.output, text)
        s.say(f"written to {o.output}: kubectl apply -f {o.output} (it holds a join line: whoever has it can join)")
    else:
        s.say(text.rstrip())


def _line(s: Session, path: str, expires: float) -> str:
    if path == "-":
        return sys.stdin.readline()
    if not path:
        return s.cluster.invite(expires)
    try:
        with open(os.path.expanduser(path)) as f:
            return f.readline()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{typed('manifest')}: --line {path} cannot be read: {e}") from None


def _write(path: str, text: str) -> None:
    """Mode 0600, also if it was there."""
    path = os.path.expanduser(path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, 0o600)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(text)
    except OSError as e:
        raise UsageError(f"{typed('manifest')}: {path} cannot be written: {e}") from None
