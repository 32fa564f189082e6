"""Groups: named groups and the mesh."""

from __future__ import annotations

from jdist.core.messages.status import StatusReport
from jdist.core.quantities import ArgumentParser
from jdist.core.ranks import RankSet
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.text.tables import table

Words = list[str]


def group(s: Session, words: Words) -> None:
    """make a named group: group NAME RANKS"""
    p = ArgumentParser(typed("group"), "Make a named process group.")
    p.add_argument("name")
    p.add_argument("ranks")
    o = p.parse(words)
    s.say(f"group {s.cluster.new_group(o.name, o.ranks)}")


def mesh(s: Session, words: Words) -> None:
    """make a named mesh: mesh dp=2,tp=2"""
    p = ArgumentParser(typed("mesh"), "Make a named mesh over the world.")
    p.add_argument(
        "dimensions", nargs="+", metavar="NAME=SIZE", help="dp=2,tp=2 or dp=2 tp=2; the sizes' product is the world's"
    )
    dimensions = ",".join(p.parse(words).dimensions)
    text = s.cluster.new_mesh(dimensions)
    s.say(f'{text}: -r {dimensions.partition("=")[0]}=0 in the notebook, mesh["…"] on the ranks')


def groups(s: Session, words: Words) -> None:
    """list groups and the mesh"""
    ArgumentParser(typed("groups"), "Named groups and the mesh.").parse(words)
    cluster = s.cluster
    found: StatusReport = cluster.status()
    rows: list[list[object]] = [["world", RankSet(cluster.ranks), "the default group"]]
    rows += [[n, RankSet(r), "named"] for n, r in found.facts.groups.items()]
    named = set(found.facts.groups)
    rows += [[g.name or "(no name)", RankSet(g.ranks), "made in a cell"] for g in found.groups if g.name not in named]
    m = cluster.mesh
    if m is not None:
        for name, size in zip(m.names, m.sizes, strict=True):
            for i in range(size):
                ranks = RankSet(r for r in cluster.ranks if m.coordinate(r, name) == i)
                rows.append([f"{name}={i}", ranks, f"mesh {m}"])
    s.screen.show(table(["group", "ranks", "made"], rows))
