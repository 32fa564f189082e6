"""Panel: the widget that shows a cluster's panel, or the form that starts one, as the session's cluster changes."""

import threading
from typing import Any

from jdist.client.blocking import Cluster
from jdist.core.errors import JdistError
from jdist.core.outcome import WIDGET_VIEW
from jdist.notebook.panel import widgets
from jdist.notebook.panel.cluster_panel import ClusterPanel
from jdist.notebook.panel.form import StartForm
from jdist.notebook.panel.html import Sight, draw_snapshot
from jdist.notebook.panel.part import ParentlessContext
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed, worded


class Panel:
    """Shows itself as the last expression of a cell. ``close`` ends it; so does closing its widgets.

    With a session it shows whatever cluster that uses, else the one it was made for.
    """

    def __init__(self, kernel: Any, cluster: Cluster | None, session: Session | None = None):
        self._kernel = kernel
        self._session = session
        self._cluster = cluster
        self._cluster_panel: ClusterPanel | None = None
        self._start_form: StartForm | None = None
        self._parentless = ParentlessContext(kernel)
        self._is_closed = False
        self._lock = threading.RLock()  # A cell and the client's loop may both change the cluster.
        self._parentless.run(self._make)
        self._unfollow = session.follow(self._parentless.wrap(self._use)) if session is not None else lambda: None

    def _make(self) -> None:
        self.widget = widgets.column()
        self.widget.layout.padding = "4px"
        self.widget.comm.on_close(lambda _: self.close())
        self.widget.observe(lambda change: self.close() if change["new"] is None else None, "comm")
        self._use(self._cluster)

    def _use(self, cluster: Cluster | None) -> None:
        """Show this cluster from now on, or none."""
        with self._lock:
            if self._is_closed:
                return
            if self._cluster_panel is not None:
                self._cluster_panel.close()
            self._cluster, self._cluster_panel, self._start_form = cluster, None, None
            if cluster is not None:
                self._cluster_panel = ClusterPanel(cluster, self._kernel, lambda: self._arrange(is_form_needed=True))
            self._arrange()
            if self._cluster_panel is not None:
                self._cluster_panel.open()

    def _arrange(self, *, is_form_needed: bool = False) -> None:
        with self._lock:
            children = [] if self._cluster_panel is None else [self._cluster_panel.widget]
            if self._session is not None and (self._cluster_panel is None or is_form_needed):
                if self._start_form is None:
                    self._start_form = StartForm(self._session.kind, self._kernel, self._session.use)
                children.append(self._start_form.widget)
            self.widget.children = children

    def close(self) -> None:
        """Stop following the cluster, and remove the widgets."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._unfollow()
            if self._cluster_panel is not None:
                self._cluster_panel.close()
            self._parentless.run(self.widget.close)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The widget; and for a front end without widgets, the cluster as it is now."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        sight = Sight("gone", f"no cluster is in use; {typed('start')} to make one")
        if self._cluster is not None:
            try:
                sight = Sight("live", "", self._cluster.status())
            except JdistError as e:
                sight = Sight("gone", worded(e))
        return {**draw_snapshot(sight), WIDGET_VIEW: view}
