"""Joining: lines with which nodes join a cluster, and this very server as a node of somebody's cluster."""

from __future__ import annotations

from jdist.client.lifecycle.join_here import join_here
from jdist.core.errors import UsageError
from jdist.core.quantities import ArgumentParser, parse_count, parse_duration
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.wire.transport.invitations import exposure

Words = list[str]


def invite(s: Session, words: Words) -> None:
    """print a line with which nodes join: invite [--expires 2h] [--revoke]"""
    p = ArgumentParser(typed("invite"), "Print a line with which nodes join this cluster.")
    p.add_argument("--expires", type=parse_duration, help="how long it can be used; default: a day")
    p.add_argument("--revoke", action="store_true", help="no line that was printed before can be used any more")
    o = p.parse(words)
    line = s.cluster.invite(o.expires, revoke=o.revoke)
    s.say(f"on the node (whoever has the line can join): echo {line} | jdist join -")


def join(s: Session, words: Words) -> None:
    """make this server a node of the cluster that printed the line: join LINE [-n RANKS] [--node-rank K]"""
    p = ArgumentParser(
        typed("join"), "Run a node of somebody's cluster here, beside this notebook, until that cluster ends."
    )
    p.add_argument("line", help="the join line, or a file that holds it")
    p.add_argument(
        "-n", "--nproc-per-node", type=parse_count, default=0, metavar="N", help="ranks; as the cluster says"
    )
    p.add_argument("--node-rank", type=int, default=-1, metavar="K", help="the node's place; default: any")
    o = p.parse(words)
    if exposed := exposure(o.line):
        s.say(exposed)
    try:
        pid = join_here(o.line, o.nproc_per_node, o.node_rank)
    except UsageError as e:
        p.error(str(e))
    s.say(f"this server is a node of that cluster now (agent {pid}); it ends with the cluster, or with this server")
