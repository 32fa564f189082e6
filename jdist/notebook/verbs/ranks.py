"""Verbs of ranks and groups: show what they do, interrupt, replace, read or enter them, and name groups of them."""

from argparse import Namespace
from collections.abc import Sequence

from jdist.core.quantities import parse_count, parse_duration
from jdist.core.ranks import RankSet, describe_fresh_ranks, describe_ranks
from jdist.core.table import Table
from jdist.notebook.output.screen import plain
from jdist.notebook.page import open_panel
from jdist.notebook.session import Session
from jdist.notebook.text.cluster_text import group_rows, status_bundle
from jdist.notebook.verbs.registry import RANKS, option, verb


@verb("status")
def status(s: Session, _: Namespace) -> None:
    """show each rank's node, device, pid, state, run, current operation, memory, GPU use and last line"""
    cluster = s.cluster
    found = cluster.status()
    alive = [row.rank for row in found.ranks if row.pid and row.state != "unreachable"]
    s.screen.show(status_bundle(found, cluster.look(alive) if alive else {}))


@verb(
    "resources",
    RANKS,
    option("--last", type=parse_duration, default=300.0, metavar="TIME", help="how far back: 60s, 5m (default), 1h"),
    option("--csv", metavar="FILE", help="write the numbers as a table: time, node, rank, name, value"),
)
def resources(s: Session, o: Namespace) -> None:
    """CPU, memory, GPUs and network of each node and rank over time: resources [-r RANKS] [--last 5m] [--csv FILE]"""
    cluster = s.cluster
    chosen = cluster.select(o.ranks, o.group)
    found = cluster.resources(o.last)
    if o.csv:
        s.echo(f"{len(list(found)):,} numbers written to {found.to_csv(o.csv)}")
        return
    s.echo(found.headline)
    s.screen.show(found.summary(chosen).bundle())


@verb("panel", attaches=None)
def panel(s: Session, o: Namespace) -> None:
    """open a live panel: ranks, groups, verdicts, and buttons that interrupt, restart, pause and continue"""
    if not s.screen.is_live:
        status(s, o)
        s.screen.show(plain("(a panel that is kept up to date needs a notebook; this is the cluster as it is now)"))
        return
    s.screen.show(open_panel(s.attached, s)._repr_mimebundle_())


@verb("interrupt", RANKS, option("--run", type=parse_count, default=0, help="only the run with this number"))
def interrupt(s: Session, o: Namespace) -> None:
    """stop running cells and keep all variables: interrupt [-r RANKS] [--run N]"""
    cluster = s.cluster
    chosen = cluster.select(o.ranks, o.group)
    found = cluster.status()
    in_it = {n: [row.rank for row in found.ranks if row.run == n] for n, _, _, _ in found.runs}
    running = [
        f"run {n} on {describe_ranks(in_it[n] or ranks)}"
        for n, _, ranks, _ in found.runs
        if set(ranks) & set(chosen) and o.run in (0, n)
    ]
    if not running and not o.run:
        s.echo("nothing is running there")
        return
    cluster.interrupt(chosen, run=o.run)
    s.echo(f"interrupting {', '.join(running)}; every namespace is kept, the group is re-formed before the next cell")


@verb("restart", RANKS)
def restart(s: Session, o: Namespace) -> None:
    """replace ranks' processes (their variables are lost): restart [-r RANKS]"""
    chosen = s.cluster.select(o.ranks, o.group)
    s.cluster.restart(chosen)
    fresh = [row.rank for row in s.cluster.status().ranks if row.fresh and row.rank in chosen]
    what = describe_fresh_ranks(fresh) if fresh else f"{describe_ranks(chosen, 'has')} been started again"
    s.echo(f"{what}; the world is re-formed")


_RANK = option("rank", nargs="?", help="the rank, as -r names it")


@verb(
    "logs",
    _RANK,
    RANKS,
    option("-n", "--lines", type=parse_count, default=50, help="show the last LINES lines; default 50"),
    option("--debug", action="store_true", help="jdist's own log: controller, agents and workers, merged by time"),
)
def logs(s: Session, o: Namespace) -> None:
    """show everything that a rank wrote: logs [-r] RANK [-n 50]; or jdist's own log: logs --debug"""
    if o.debug:
        s.echo(str(s.cluster.debug_log(o.lines)))
        return
    for rank in s.cluster.select(o.rank or o.ranks, o.group):
        log = s.cluster.logs(rank, o.lines)
        s.echo(f"rank {rank}, {log.path} on {s.cluster.topology.host_of(rank)}:\n{log.text}")


@verb("console", _RANK, RANKS)
def console(s: Session, o: Namespace) -> None:
    """show how to attach a terminal to a rank's kernel: console [-r] RANK"""
    for rank in s.cluster.select(o.rank or o.ranks, o.group):
        at = s.cluster.console(rank)
        s.echo(f"on {at.hostname}: jupyter console --existing {at.connection_file}")


@verb("group", option("name"), option("ranks"), attaches=None)
def group(s: Session, o: Namespace) -> None:
    """make a named process group: group NAME RANKS"""
    s.echo(f"group {s.cluster.new_group(o.name, o.ranks)}")


_DIMENSIONS = option(
    "dimensions", nargs="+", metavar="NAME=SIZE", help="dp=2,tp=2 or dp=2 tp=2; the product is the world's size"
)


@verb("mesh", _DIMENSIONS, attaches=None)
def mesh(s: Session, o: Namespace) -> None:
    """make a named mesh over the world: mesh dp=2,tp=2"""
    dimensions = ",".join(o.dimensions)
    text = s.cluster.new_mesh(dimensions)
    s.echo(f'{text}: -r {dimensions.partition("=")[0]}=0 in the notebook, mesh["…"] on the ranks')


@verb("groups")
def groups(s: Session, _: Namespace) -> None:
    """list groups and the mesh"""
    cluster = s.cluster
    rows: list[Sequence[object]] = [*group_rows(cluster.status())]
    if (m := cluster.mesh) is not None:
        for name, size in zip(m.names, m.sizes, strict=True):
            for i in range(size):
                ranks = RankSet(r for r in cluster.ranks if m.coordinate(r, name) == i)
                rows.append([f"{name}={i}", ranks, f"mesh {m}"])
    s.screen.show(Table.of(("group", "ranks", "made"), rows).bundle())
