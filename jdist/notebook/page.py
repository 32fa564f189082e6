"""Page: what the page of a notebook is told and shown: which cluster the notebook uses, and a panel.

Neither ipywidgets nor the package for comms is imported before it is needed.
"""

from typing import TYPE_CHECKING, Any

from jdist.client.cluster import Cluster
from jdist.core.errors import UsageError
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

if TYPE_CHECKING:
    from comm.base_comm import BaseComm

    from jdist.notebook.panel import Panel

TARGET = "jdist"  # The same in labextension/src/toolbar/attached.ts.


class ClusterComm:
    """Sends ``{"cluster": NAME, "id": ID, "is_auto": BOOL}``, or None for name and id, when another cluster is used,
    the one in use has ended, or auto is turned on or off, and when a page asks.

    The comm is opened when a cluster is used for the first time. A page without jdist's extension knows no such target
    and answers by closing the comm, as Jupyter's protocol demands; it is opened again for the next change.
    """

    def __init__(self, session: Session):
        self._session = session
        self._comm: BaseComm | None = None
        self._has_told = False
        self._unfollows = (session.follow(lambda _: self._tell()), session.follow_state(self._tell))

    def close(self) -> None:
        for unfollow in self._unfollows:
            unfollow()
        if self._comm is not None:
            self._comm.close()
            self._comm = None

    def _tell(self) -> None:
        cluster = self._session.usable
        name, cluster_id = (None, None) if cluster is None else (cluster.name, cluster.id)
        told = {"cluster": name, "id": cluster_id, "is_auto": self._session.is_auto}
        if self._comm is not None:
            self._comm.send(told)
        elif cluster is not None or self._has_told:
            from comm import create_comm  # only here: scripts have no page

            self._has_told = True
            self._comm = create_comm(target_name=TARGET, data=told)
            self._comm.on_msg(self._answer)
            self._comm.on_close(self._forget)

    def _answer(self, _: Any) -> None:
        """A page was loaded, and asks; on a thread of a subshell, where the page uses those."""
        self._tell()

    def _forget(self, _: Any) -> None:
        self._comm = None


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
