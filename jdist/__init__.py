"""jdist: one notebook drives every rank of a distributed PyTorch world.

>>> import jdist
>>> cluster = jdist.start(nproc_per_node=2, nnodes=2)
>>> cluster.run("x = torch.ones(1) * rank; dist.all_reduce(x); x.item()").values
{0: 6.0, 1: 6.0, 2: 6.0, 3: 6.0}

In a notebook: ``%load_ext jdist``, then ``%dist start`` and ``%%dist``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jdist.core import __version__

if TYPE_CHECKING:
    from jdist.client.cluster import AsyncCluster, Cluster, attach, list_clusters, start
    from jdist.client.measure.profile import Profile
    from jdist.client.measure.trace import Trace
    from jdist.client.metrics.logged import Metrics
    from jdist.client.run import CellRun
    from jdist.core.errors import (
        CellError,
        CellInterrupted,
        CellTimeout,
        ConnectionLost,
        JdistError,
        LaunchError,
        ProtocolError,
        RankLost,
        UsageError,
        ValueFailed,
    )
    from jdist.core.outcome import ErrorInfo, Outcome
    from jdist.core.profile import ProfileOptions
    from jdist.notebook.export import export
    from jdist.notebook.page import panel
    from jdist.worker.debug.breakpoints import breakpoint  # noqa: A004 — it does what Python's own does, under a condition
    from jdist.worker.groups.on_reform import on_reform
    from jdist.worker.metrics import log
    from jdist.worker.profile import profile_step
    from jdist.worker.session.points import save_if_due
    from jdist.worker.widgets import process_events

# The modules of the public names that are no errors.
_HOMES = {
    **dict.fromkeys(("AsyncCluster", "Cluster", "attach", "list_clusters", "start"), "jdist.client.cluster"),
    "CellRun": "jdist.client.run",
    "on_reform": "jdist.worker.groups.on_reform",
    "breakpoint": "jdist.worker.debug.breakpoints",
    "export": "jdist.notebook.export",
    "panel": "jdist.notebook.page",
    "Metrics": "jdist.client.metrics.logged",
    "Profile": "jdist.client.measure.profile",
    "ProfileOptions": "jdist.core.profile",
    "log": "jdist.worker.metrics",
    "profile_step": "jdist.worker.profile",
    "save_if_due": "jdist.worker.session.points",
    "process_events": "jdist.worker.widgets",
    "Trace": "jdist.client.measure.trace",
    **dict.fromkeys(("ErrorInfo", "Outcome"), "jdist.core.outcome"),
}

__all__ = [
    "AsyncCluster",
    "CellError",
    "CellInterrupted",
    "CellRun",
    "CellTimeout",
    "Cluster",
    "ConnectionLost",
    "ErrorInfo",
    "JdistError",
    "LaunchError",
    "Metrics",
    "Outcome",
    "Profile",
    "ProfileOptions",
    "ProtocolError",
    "RankLost",
    "Trace",
    "UsageError",
    "ValueFailed",
    "__version__",
    "attach",
    "breakpoint",
    "export",
    "list_clusters",
    "load_ipython_extension",
    "log",
    "on_reform",
    "panel",
    "process_events",
    "profile_step",
    "save_if_due",
    "start",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that agents and controllers start without the client."""
    if name not in __all__:
        raise AttributeError(f"module 'jdist' has no attribute {name!r}")
    home = _HOMES.get(name, "jdist.core.errors")
    if home == "jdist.client.cluster":
        importlib.import_module("jdist.notebook.page")  # gives Cluster its panel
    found = globals()[name] = getattr(importlib.import_module(home), name)  # not sought again: some are called in loops
    return found


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext jdist``."""
    from jdist.notebook.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext jdist``: the magics go; clusters live on."""
    from jdist.notebook.magics import unload

    unload(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from jdist.server.extension import Jdist

    return [{"module": "jdist.server.extension", "app": Jdist}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where ``jupyter-builder develop`` finds the built extension of JupyterLab, in a source tree."""
    return [{"src": "../labextension/built", "dest": "jdist"}]
