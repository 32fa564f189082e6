"""Verbs of values: between the notebook and ranks, between ranks, into a folder and back, and tables about them."""

from argparse import Namespace
from typing import Any, get_args

from jdist.client.attachment import Ranks
from jdist.client.threads import bridge
from jdist.client.variables.carrier import Carrier
from jdist.client.variables.table import SortKey
from jdist.client.variables.variables import split_names
from jdist.core.errors import UsageError, ValueFailed, nearest
from jdist.core.messages.saving import by_reason
from jdist.core.quantities import (
    expression,
    expression_part,
    format_bytes,
    format_duration,
    parse_count,
    parse_duration,
)
from jdist.core.ranks import RankSet, describe_ranks
from jdist.notebook.options import join_expression
from jdist.notebook.output.progress import TransferProgress
from jdist.notebook.session import Session
from jdist.notebook.text.cluster_text import value_bundle, variable_rows
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.registry import RANKS, option, verb

_NAME = option("name", type=expression)
_NAMES = option("names", type=expression)
_SAVED = option("names", nargs="*", type=expression, help="NAME[,NAME]; default: all variables that cells have defined")
_OUT = option("-o", "--out", metavar="NAME", help="bind the result to this name; required for an expression")
_FULL = option("--full", action="store_true", help="assemble DTensors first")
_DIM = option("--dim", type=int, default=0, help="the dimension along which the value is split or joined")


@verb("pull", _NAMES, RANKS, _FULL, _OUT, attaches=None)
def pull(s: Session, o: Namespace) -> None:
    """copy values to the notebook as {rank: value}: pull NAME[,NAME] [-r RANKS] [--full]"""
    pull_names(s, o.names, s.cluster.select(o.ranks, o.group), o.full, o.out)


def pull_names(s: Session, text: str, ranks: tuple[int, ...], full: bool = False, out: str | None = None) -> None:
    """Pull and bind; what arrived is bound even when some of it did not."""
    names = split_names(text)
    targets = [out] if out and len(names) == 1 else list(names)
    for target in targets:
        _check_variable(target)
    error = None
    with TransferProgress(s.screen) as progress:
        try:
            found = s.cluster.pull(",".join(names), ranks, full=full, on_progress=progress.update)
        except ValueFailed as e:
            found, error = e.values, e
        by_name = found if len(names) > 1 else {names[0]: found}
        arrived = {target: by_name[name] for name, target in zip(names, targets, strict=True) if by_name.get(name)}
        s.namespace.update(arrived)
        if arrived:
            bound = ", ".join(f"{target} from ranks {RankSet(values)}" for target, values in arrived.items())
            progress.finish(f"pulled {bound} as {{rank: value}}")
    if error is not None:
        raise error


@verb("push", _NAMES, RANKS, attaches=None)
def push(s: Session, o: Namespace) -> None:
    """copy the notebook's values to the ranks: push NAME[,NAME] [-r RANKS]"""
    names = split_names(o.names)
    ranks = s.cluster.select(o.ranks, o.group)
    values = {n: _own(s, n) for n in names}
    with TransferProgress(s.screen) as progress:
        # not through Cluster.push, whose own parameters are names that a user may push
        bridge().call(s.cluster.asynchronous.part(Carrier).push(values, ranks, progress.update))
        s.cluster.history.add_values(values, ranks)
        progress.finish(f"pushed {', '.join(names)} to ranks {RankSet(ranks)}")


@verb("scatter", _NAME, RANKS, _DIM, attaches=None)
def scatter(s: Session, o: Namespace) -> None:
    """distribute the parts of a value over the ranks: scatter NAME [--dim 0] [-r RANKS]"""
    ranks = s.cluster.select(o.ranks, o.group)
    with TransferProgress(s.screen) as progress:
        s.cluster.scatter(o.name, _own(s, o.name), o.dim, ranks, on_progress=progress.update)
        progress.finish(f"scattered {o.name} along dimension {o.dim} to ranks {RankSet(ranks)}")


@verb("gather", _NAME, RANKS, _DIM, _OUT, attaches=None)
def gather(s: Session, o: Namespace) -> None:
    """concatenate the ranks' values in the notebook: gather NAME [--dim 0] [-r RANKS]"""
    target = o.out or o.name
    _check_variable(target)
    ranks = s.cluster.select(o.ranks, o.group)
    with TransferProgress(s.screen) as progress:
        s.namespace[target] = s.cluster.gather(o.name, o.dim, ranks, on_progress=progress.update)
        progress.finish(f"gathered {o.name} of ranks {RankSet(ranks)} along dimension {o.dim}")


@verb("broadcast", _NAME, option("--src", type=int, default=0), attaches=None)
def broadcast(s: Session, o: Namespace) -> None:
    """copy one rank's value to every rank, directly between the ranks: broadcast NAME [--src 0]"""
    s.cluster.broadcast(o.name, o.src)
    s.echo(f"{o.name} of rank {o.src} is bound on every rank")


@verb(
    "restore",
    option("rank", help="the fresh rank, or several: 2,3"),
    option("--from", dest="src", type=int, required=True, metavar="RANK", help="a rank that was not replaced"),
    option("names", nargs="+", type=expression, help="such as model,optimizer; restore what belongs together at once"),
    attaches=None,
)
def restore(s: Session, o: Namespace) -> None:
    """restore variables of a fresh rank from a replica: restore RANK --from RANK NAME[,NAME]"""
    found = s.cluster.restore(o.rank, o.src, _names(o.names))
    for rank, done in found.items():
        s.echo(f"rank {rank} from rank {o.src}: " + ", ".join(f"{name} {what}" for name, what in done.items()))


@verb("show", _NAME, RANKS)
def show(s: Session, o: Namespace) -> None:
    """describe a value by rank: type, shape, dtype, device, mean, std, norm, NaN count: show NAME [-r RANKS]

    Below it, the distribution of the elements of a tensor or array on each rank, in the same bins on all of them.
    """
    s.screen.show(value_bundle(s.cluster.show(o.name, s.cluster.select(o.ranks, o.group))))


@verb(
    "vars",
    option("pattern", nargs="*", type=expression, help="names to list, as shell patterns: loss*,model"),
    RANKS,
    option("--sort", choices=get_args(SortKey), default="name", help="name, size or type"),
    option("--stats", action="store_true", help="add mean and norm, which reads every element"),
    option("--check", action="store_true", help="compare contents by digest, which reads every byte"),
)
def list_variables(s: Session, o: Namespace) -> None:
    """list the ranks' variables: type, shape, device, placement, bytes, who agrees: vars [PATTERN] [-r RANKS]

    Reads only metadata, even while cells run. "same metadata" does not mean equal contents; --check compares those.
    """
    pattern = ",".join(part.strip(",") for part in o.pattern)
    found = s.cluster.variables(pattern, _chosen(s, o), stats=o.stats, check=o.check).sorted(o.sort)
    if found.variables:
        s.screen.show(variable_rows(found).bundle())
    nothing = "the ranks have no variables" + (f" that match {pattern}" if pattern else "")
    for note in found.notes or ([] if found.variables else [nothing]):
        s.echo(note)


@verb("check", option("expr", nargs="+", type=expression_part), RANKS)
def check(s: Session, o: Namespace) -> Any:
    """compare a value on all ranks, and name the first entry that differs: check EXPR [-r RANKS]"""
    return s.cluster.check(join_expression(o.expr), s.cluster.select(o.ranks, o.group))


@verb(
    "save",
    option("directory", nargs="?", default="", help="a folder that all nodes share; each save is a new folder in it"),
    _SAVED,
    option("--keep", type=parse_count, default=2, metavar="N", help="keep the newest N saves; default: 2"),
    option("-b", "--background", action="store_true", help="return as soon as the ranks are free"),
    option("--every", type=parse_duration, metavar="TIME", help="save automatically, such as every 10m"),
    option("--off", action="store_true", help="stop automatic saves"),
)
def save(s: Session, o: Namespace) -> None:
    """save the ranks' variables to a folder: save DIR [NAME,…] [--every 10m | --off]

    The ranks are busy only while they copy their values. Cells may run while the copies are written. With --every, a
    save begins automatically between two cells, or where a cell calls jdist.save_if_due().
    """
    if o.off:
        s.cluster.autosave("", every=None)
        s.echo("automatic saves are off")
        return
    if not o.directory:
        raise UsageError(f"name a folder that all nodes share, such as: {typed('save')} /shared/me/run1")
    if o.every is not None:
        s.cluster.autosave(o.directory, _names(o.names), every=o.every, keep=o.keep)
        s.echo(f"saving to {s.there(o.directory)} every {format_duration(o.every)}; the newest {o.keep} are kept")
        return
    done = s.cluster.save(o.directory, _names(o.names), keep=o.keep, background=o.background)
    for line in by_reason(done.left_out):
        s.echo(f"not saved: {line}")
    size = f"{len(done.names)} name{'s' * (len(done.names) != 1)}, {format_bytes(done.nbytes)} of tensors"
    busy = f"the ranks were busy for {format_duration(done.busy_seconds)}"
    if o.background:
        s.echo(f"writing {s.there(done.folder)}: {size}; {busy}")
    else:
        s.echo(f"saved to {s.there(done.folder)}: {size}, in {format_duration(done.seconds)}; {busy}")


@verb(
    "load",
    option(
        "directory",
        nargs="?",
        default="",
        help="where sessions were saved (the newest is loaded), or the folder of one save",
    ),
    _SAVED,
    option("--map", default="", metavar="RANK=SAVED,…", help="these ranks take the values of other saved ranks"),
)
def load(s: Session, o: Namespace) -> None:
    """load saved variables, on the same or a different number of ranks: load DIR [NAME,…] [--map 4=0,5=1]

    In a world of a different size, sharded tensors are sharded again, and variables that were equal on all ranks are
    loaded on all ranks. If a variable differed by rank, each rank gets the value of the rank with its number.
    """
    if not o.directory:
        raise UsageError(f"name the folder that {typed('save')} wrote to, such as: {typed('load')} /shared/me/run1")
    done = s.cluster.load(o.directory, _names(o.names), sources=_sources(o.map))
    for text in (*done.notes, *done.decisions):
        s.echo(text)
    for line in by_reason(done.failed):
        s.echo(f"not loaded: {line}")
    everywhere = [name for name, ranks in done.names.items() if len(ranks) == s.cluster.world_size]
    some = {name: ranks for name, ranks in done.names.items() if name not in everywhere}
    saved = f"saved {done.manifest.saved_at} on {done.manifest.world_size} ranks"
    s.echo(f"loaded {len(done.names)} name{'s' * (len(done.names) != 1)} from {s.there(done.folder)} ({saved})")
    for name, ranks in some.items():
        s.echo(f"  {name}: only {describe_ranks(ranks)}")


def _chosen(s: Session, o: Namespace) -> Ranks:
    """The ranks that the user named; None for those whose names cells would use."""
    return None if o.ranks is None and o.group is None else s.cluster.select(o.ranks, o.group)


def _own(s: Session, name: str) -> Any:
    if name not in s.namespace:
        names = [n for n in s.namespace if not n.startswith("_")]
        raise UsageError(f"there is no name {name!r} in the notebook{nearest(name, names) if names else ''}")
    return s.namespace[name]


def _check_variable(name: str) -> None:
    if not name.isidentifier():
        raise UsageError(f"{name!r} is not a variable name; choose one with -o NAME")


def _names(names: list[str]) -> str:
    return ",".join(n.strip(",") for n in names)


def _sources(text: str) -> dict[int, int]:
    """``"4=0,5=1"`` as ``{4: 0, 5: 1}``. Raises UsageError."""
    found = {}
    for part in filter(None, text.split(",")):
        rank, _, saved = part.partition("=")
        if not rank.strip().isdecimal() or not saved.strip().isdecimal():
            raise UsageError(f"--map takes RANK=SAVED,… such as 4=0,5=1; not {part!r}")
        found[int(rank)] = int(saved)
    return found
