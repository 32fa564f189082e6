"""Export: the cells that a client has run on a cluster, as a script that torchrun runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from jdist.client.blocking import Cluster


class Exported(Struct, frozen=True):
    """The script that was written."""

    path: str
    cells: int  # The number of cells in the script.
    left_out: int  # The number of cells that are only comments in it.
    warnings: tuple[str, ...]  # Each names a cell and says what is not as it was in the session.


def export(cluster: Cluster, path: str, *, force: bool = False) -> Exported:
    """Write what ``cluster`` was asked to run, by this process, as a script: ``torchrun … path``.

    Raises UsageError for a file that export has not written, or that was edited since, unless ``force``; and if nothing
    was run.
    """
    from jdist.core.errors import UsageError
    from jdist.notebook.export import files
    from jdist.notebook.export.prologue import ScriptWorld
    from jdist.notebook.export.script import compose

    history, topology = cluster.history, cluster.topology
    if not history.steps:
        raise UsageError(
            f"nothing was run on cluster {cluster.name} from here; what other notebooks ran, or this one before its "
            "kernel was restarted, is theirs to export"
        )
    world = ScriptWorld(tuple(len(topology.ranks_on(n)) for n in range(topology.nnodes)), cluster.backend)
    script = compose(history.steps, world, os.path.basename(path), history.forgotten)
    return Exported(files.write(path, script.text, force=force), script.cells, script.left_out, script.warnings)
