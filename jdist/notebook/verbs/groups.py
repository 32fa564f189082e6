"""Verbs of named groups and the mesh."""

from argparse import Namespace
from collections.abc import Sequence

from jdist.core.ranks import RankSet
from jdist.notebook.session import Session
from jdist.notebook.text.status_text import group_rows
from jdist.notebook.text.tables import table
from jdist.notebook.verbs.registry import option, verb


@verb("group", option("name"), option("ranks"), attaches=None)
def group(s: Session, o: Namespace) -> None:
    """make a named process group: group NAME RANKS"""
    s.echo(f"group {s.cluster.new_group(o.name, o.ranks)}")


_DIMENSIONS = option(
    "dimensions", nargs="+", metavar="NAME=SIZE", help="dp=2,tp=2 or dp=2 tp=2; the sizes' product is the world's"
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
    s.screen.show(table(["group", "ranks", "made"], rows))
