"""Export: the cells that a client has run on a cluster, as a script that torchrun runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from jdist.client.blocking import Cluster
    from jdist.notebook.export.script import Script

__all__ = ["Exported", "export"]


class Exported(Struct, frozen=True):
    """What was written."""

    path: str
    cells: int
    """In the script."""
    left_out: int
    """Cells that are comments in it."""
    warnings: tuple[str, ...]
    """Each names a cell and says what is not as it was in the session."""


def export(cluster: Cluster, path: str, *, force: bool = False) -> Exported:
    """Write what ``cluster`` was asked to run, by this process, as a script: ``torchrun … path``.

    Raises UsageError for a file that export has not written, or that was edited since, unless ``force``; and if nothing
    was run.
    """
    from jdist.notebook.export import files

    script = composed(cluster, os.path.basename(path))
    return Exported(files.write(path, script.text, force=force), script.cells, script.left_out, script.warnings)


def composed(cluster: Cluster, file: str) -> Script:
    """The script, for a file of that name. Raises UsageError if nothing was run."""
    from jdist.core.errors import UsageError
    from jdist.notebook.export.prologue import World
    from jdist.notebook.export.script import compose

    history, topology = cluster.history, cluster.topology
    steps = history.steps
    if not steps:
        raise UsageError(
            f"nothing was run on cluster {cluster.name} from here; what other notebooks ran, or this one before its "
            "kernel was restarted, is theirs to export"
        )
    counts = tuple(len(topology.ranks_on(n)) for n in range(topology.nnodes))
    return compose(steps, World(counts, cluster.backend), file, history.forgotten)
