"""The metrics of a run: what its ranks have logged, shown, or written to files."""

from argparse import Namespace

from jdist.core.quantities import parse_count
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import option, verb


@verb(
    "metrics",
    option("--run", type=parse_count, default=0, metavar="N", help="number of a run; default: the last that logged"),
    option("--csv", metavar="FILE", help="write the points as a table: step, rank, name, value, time"),
    option("--tensorboard", metavar="DIR", help="write event files for TensorBoard, a folder for each rank"),
    attaches=None,
)
def metrics(s: Session, o: Namespace) -> None:
    """show what the ranks logged with `jdist.log` in a cell: metrics [--run N] [--csv FILE] [--tensorboard DIR]"""
    found = s.cluster.metrics(o.run)
    if not o.csv and not o.tensorboard:
        s.screen.show(found.bundle())
    if o.csv:
        s.echo(f"{len(found):,} points written to {found.to_csv(o.csv)}")
    if o.tensorboard:
        s.echo(f"{len(found):,} points written to {found.to_tensorboard(o.tensorboard)}")
