"""Open a panel where one can be shown, and otherwise say why not. Imports ipywidgets only then."""

from typing import TYPE_CHECKING

from jdist.client.cluster import Cluster
from jdist.core.errors import UsageError
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

if TYPE_CHECKING:
    from jdist.notebook.panel import Panel


def panel(cluster: Cluster) -> "Panel":
    """A panel of ``cluster`` for the notebook that this is called in; as a cell's last expression it is shown.

    Ranks, groups, verdicts, and buttons that interrupt, restart, pause and continue. Raises UsageError outside a
    notebook.
    """
    return open_panel(cluster, None)


Cluster.panel = panel  # type: ignore[assignment]


def open_panel(cluster: Cluster | None, session: Session | None) -> "Panel":
    """A panel; with a session it shows the cluster that the session uses."""
    try:
        from jdist.notebook import panel as widgets
    except ImportError as e:
        raise UsageError(
            f"the panel needs ipywidgets, which this kernel's environment lacks ({e}): pip install 'ipywidgets>=8.1'"
        ) from e
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        raise UsageError(
            f"a panel needs a notebook: there is no kernel here; {typed('status')} shows the cluster as it is now"
        )
    return widgets.Panel(kernel, cluster, session)
