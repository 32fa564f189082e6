"""Values: pull, push, broadcast, scatter, gather, show, check."""

from __future__ import annotations

from typing import Any

from jdist.client.blocking import Cluster, bridge
from jdist.client.expressions import split_names
from jdist.core.errors import JdistError, UsageError, ValueFailed, nearest
from jdist.core.quantities import ArgumentParser
from jdist.core.ranks import RankSet
from jdist.notebook.options import ranks_parser
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.text.tables import table, thumb_svg
from jdist.notebook.text.transfer_progress import ProgressLine

Words = list[str]


def pull(s: Session, words: Words) -> None:
    """bring values into the notebook as {rank: value}: pull NAME[,NAME] [-r RANKS] [--full]"""
    p = ranks_parser(typed("pull"), "Bring values from the ranks.", "names")
    p.add_argument("--full", action="store_true", help="assemble DTensors first")
    p.add_argument("-o", "--out", metavar="NAME", help="bind under this name; needed for an expression")
    o = p.parse(words)
    pull_names(s, o.names, s.cluster.select(o.ranks, o.group), o.full, o.out)


def pull_names(s: Session, text: str, ranks: tuple[int, ...], full: bool = False, out: str | None = None) -> None:
    """Pull and bind; what arrived is bound even when some of it did not."""
    names = split_names(text)
    targets = [out] if out and len(names) == 1 else list(names)
    bad = [n for n in targets if not n.isidentifier()]
    if bad:
        raise UsageError(f"{bad[0]!r} is no variable name: say which to bind with -o NAME")
    with ProgressLine(s.screen) as progress:
        found, error = _pull_all(s.cluster, names, ranks, full, progress)
        for name, target in zip(names, targets, strict=True):
            if found.get(name):
                s.namespace[target] = found[name]
        bound = [f"{t} from ranks {RankSet(found[n])}" for n, t in zip(names, targets, strict=True) if found.get(n)]
        if bound:
            progress.finish("pulled " + ", ".join(bound) + " as {rank: value}")
    if error is not None:
        raise error


def _pull_all(
    cluster: Cluster, names: tuple[str, ...], ranks: tuple[int, ...], full: bool, progress: ProgressLine
) -> tuple[dict[str, Any], JdistError | None]:
    error = None
    try:
        found = cluster.pull(",".join(names), ranks, full=full, on_progress=progress.note)
    except ValueFailed as e:
        found, error = e.values, e
    return (found if len(names) > 1 else {names[0]: found}), error


def push(s: Session, words: Words) -> None:
    """bind the notebook's values on ranks: push NAME[,NAME] [-r RANKS]"""
    o = ranks_parser(typed("push"), "Bind the notebook's values on ranks.", "names").parse(words)
    names = split_names(o.names)
    ranks = s.cluster.select(o.ranks, o.group)
    values = {n: _own(s, n) for n in names}
    with ProgressLine(s.screen) as progress:
        # not through Cluster.push, whose own parameters are names that a user may push
        bridge().call(s.cluster.asynchronous.attachment.carrier.push(values, ranks, progress.note))
        s.cluster.history.add_values(values, ranks)
        progress.finish(f"pushed {', '.join(names)} to ranks {RankSet(ranks)}")


def scatter(s: Session, words: Words) -> None:
    """bind part i of a value on the i-th rank: scatter NAME [--dim 0] [-r RANKS]"""
    p = ranks_parser(typed("scatter"), "Bind part i of the notebook's value on the i-th rank.", "name")
    p.add_argument("--dim", type=int, default=0)
    o = p.parse(words)
    ranks = s.cluster.select(o.ranks, o.group)
    with ProgressLine(s.screen) as progress:
        s.cluster.scatter(o.name, _own(s, o.name), o.dim, ranks, on_progress=progress.note)
        progress.finish(f"scattered {o.name} along dimension {o.dim} to ranks {RankSet(ranks)}")


def gather(s: Session, words: Words) -> None:
    """concatenate the ranks' values into the notebook: gather NAME [--dim 0] [-r RANKS]"""
    p = ranks_parser(typed("gather"), "Concatenate the ranks' values into the notebook.", "name")
    p.add_argument("--dim", type=int, default=0)
    p.add_argument("-o", "--out", metavar="NAME", help="bind under this name; needed for an expression")
    o = p.parse(words)
    target = o.out or o.name
    if not target.isidentifier():
        raise UsageError(f"{target!r} is no variable name: say which to bind with -o NAME")
    ranks = s.cluster.select(o.ranks, o.group)
    with ProgressLine(s.screen) as progress:
        s.namespace[target] = s.cluster.gather(o.name, o.dim, ranks, on_progress=progress.note)
        progress.finish(f"gathered {o.name} of ranks {RankSet(ranks)} along dimension {o.dim}")


def broadcast(s: Session, words: Words) -> None:
    """bind one rank's value on every rank, between the ranks: broadcast NAME [--src 0]"""
    p = ArgumentParser(typed("broadcast"), "Bind one rank's value on every rank.")
    p.add_argument("name")
    p.add_argument("--src", type=int, default=0)
    o = p.parse(words)
    s.cluster.broadcast(o.name, o.src)
    s.say(f"{o.name} of rank {o.src} is bound on every rank")


def restore(s: Session, words: Words) -> None:
    """bring names of a fresh rank back from a replica: restore RANK --from RANK NAME[,NAME]"""
    p = ArgumentParser(typed("restore"), "Bring names of a fresh rank back from a rank that has them.")
    p.add_argument("rank", help="the fresh rank, or several: 2,3")
    p.add_argument("--from", dest="src", type=int, required=True, metavar="RANK", help="a rank that has lived on")
    p.add_argument("names", nargs="+", help="model,optimizer: what works together is restored together")
    o = p.parse(words)
    found = s.cluster.restore(o.rank, o.src, ",".join(n.strip(",") for n in o.names))
    for rank, done in found.items():
        s.say(f"rank {rank} from rank {o.src}: " + ", ".join(f"{name} {what}" for name, what in done.items()))


def show(s: Session, words: Words) -> None:
    """a table by rank: type, shape, dtype, device, mean, std, norm, NaN count: show NAME [-r RANKS]"""
    o = ranks_parser(typed("show"), "A table about a value, by rank.", "name").parse(words)
    found = s.cluster.show(o.name, s.cluster.select(o.ranks, o.group))
    rows: list[list[object]] = []
    for rank, d in found.items():
        if "error" in d:
            rows.append([rank, d["error"]])
            continue
        shape = "" if d["shape"] is None else str(list(d["shape"]))
        numbers = ["" if d[k] is None else f"{d[k]:.6g}" for k in ("mean", "std", "norm")]
        nan = "" if d["nan_count"] is None else str(d["nan_count"])
        size = "" if d["nbytes"] is None else f"{d['nbytes']:,}"
        detail = d["detail"] or ("" if d["length"] is None else f"length {d['length']}")
        rows.append([rank, d["type"], shape, d["dtype"], d["device"], d["placement"], size, *numbers, nan, detail])
    heads = ["rank", "type", "shape", "dtype", "device", "placement", "bytes", "mean", "std", "norm", "NaN", ""]
    bundle = dict(table(heads, [[*r, *[""] * (len(heads) - len(r))] for r in rows]))
    thumbs = "".join(f"<div>rank {r}: {thumb_svg(d['thumb'])}</div>" for r, d in found.items() if d.get("thumb"))
    bundle["text/html"] = bundle["text/html"] + thumbs
    s.screen.show(bundle)


def check(s: Session, words: Words) -> Any:
    """is it equal on all ranks? names the first entry that differs: check EXPR [-r RANKS]"""
    p = ranks_parser(typed("check"), "Is an expression equal on all ranks?")
    p.add_argument("expr", nargs="+")
    o = p.parse(words)
    return s.cluster.check(" ".join(o.expr), s.cluster.select(o.ranks, o.group))


def _own(s: Session, name: str) -> Any:
    if name not in s.namespace:
        names = [n for n in s.namespace if not n.startswith("_")]
        raise UsageError(f"there is no name {name!r} in the notebook{nearest(name, names) if names else ''}")
    return s.namespace[name]
