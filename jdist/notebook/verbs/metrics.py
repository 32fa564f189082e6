"""The metrics of a run: what its ranks have logged, shown, or written to files."""

from argparse import Namespace

from jdist.core.quantities import parse_count
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import option, verb


@verb(
    "metrics",
    option("--run", type=parse_count, default=0, metavar="N", help="number of a run; default: the last that logged"),
    option("--csv", metavar="FILE", help="write the points as a table: step, rank, name, value, time"),
    attaches=None,
)
def metrics(s: Session, o: Namespace) -> None:
    """show what the ranks logged with `jdist.log` in a cell: metrics [--run N] [--csv FILE]"""
    found = s.cluster.metrics(o.run)
    if o.csv:
        s.echo(f"{len(found):,} points written to {found.to_csv(o.csv)}")
    else:
        s.screen.show(found.bundle())
