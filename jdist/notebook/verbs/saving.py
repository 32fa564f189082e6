"""Verbs that save the session into a folder, and load it again."""

from argparse import Namespace

from jdist.core.errors import UsageError
from jdist.core.manifest import by_reason
from jdist.core.quantities import expression, format_bytes, format_duration, parse_count, parse_duration
from jdist.core.ranks import describe_ranks
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.registry import option, verb

_NAMES = option("names", nargs="*", type=expression, help="NAME[,NAME]; default: all variables that cells have defined")


@verb(
    "save",
    option("directory", nargs="?", default="", help="a folder that all nodes share; each save is a new folder in it"),
    _NAMES,
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
        s.cluster.autosave(o.directory, _joined(o.names), every=o.every, keep=o.keep)
        s.echo(f"saving to {o.directory} every {format_duration(o.every)}; the newest {o.keep} are kept")
        return
    done = s.cluster.save(o.directory, _joined(o.names), keep=o.keep, background=o.background)
    for line in by_reason(done.left_out):
        s.echo(f"not saved: {line}")
    size = f"{len(done.names)} name{'s' * (len(done.names) != 1)}, {format_bytes(done.nbytes)} of tensors"
    busy = f"the ranks were busy for {format_duration(done.busy_seconds)}"
    if o.background:
        s.echo(f"writing {done.folder}: {size}; {busy}")
    else:
        s.echo(f"saved to {done.folder}: {size}, in {format_duration(done.seconds)}; {busy}")


@verb(
    "load",
    option(
        "directory",
        nargs="?",
        default="",
        help="where sessions were saved (the newest is loaded), or the folder of one save",
    ),
    _NAMES,
    option("--map", default="", metavar="RANK=SAVED,…", help="these ranks take the values of other saved ranks"),
)
def load(s: Session, o: Namespace) -> None:
    """load saved variables, on the same or a different number of ranks: load DIR [NAME,…] [--map 4=0,5=1]

    In a world of a different size, sharded tensors are sharded again, and variables that were equal on all ranks are
    loaded on all ranks. If a variable differed by rank, each rank gets the value of the rank with its number.
    """
    if not o.directory:
        raise UsageError(f"name the folder that {typed('save')} wrote to, such as: {typed('load')} /shared/me/run1")
    done = s.cluster.load(o.directory, _joined(o.names), sources=_sources(o.map))
    for text in (*done.notes, *done.decisions):
        s.echo(text)
    for line in by_reason(done.failed):
        s.echo(f"not loaded: {line}")
    everywhere = [name for name, ranks in done.names.items() if len(ranks) == s.cluster.world_size]
    some = {name: ranks for name, ranks in done.names.items() if name not in everywhere}
    saved = f"saved {done.manifest.saved_at} on {done.manifest.world_size} ranks"
    s.echo(f"loaded {len(done.names)} name{'s' * (len(done.names) != 1)} from {done.folder} ({saved})")
    for name, ranks in some.items():
        s.echo(f"  {name}: only {describe_ranks(ranks)}")


def _joined(names: list[str]) -> str:
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
