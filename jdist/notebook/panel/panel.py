"""Panel: the widget: a cluster's board, or the form that starts one. It follows the session when that has another."""

from __future__ import annotations

from typing import Any

from jdist.client.blocking import Cluster
from jdist.core.errors import JdistError
from jdist.notebook.panel import widgets
from jdist.notebook.panel.cluster_panel import Board
from jdist.notebook.panel.comm_thread import Apart
from jdist.notebook.panel.form import Form
from jdist.notebook.panel.html import Sight, draw_still
from jdist.notebook.session import Session

_WIDGET = "application/vnd.jupyter.widget-view+json"


class Panel:
    """Shows itself as the last expression of a cell. ``close`` ends it; so does closing its widgets.

    With a session it shows whatever cluster that uses, else the one it was made for.
    """

    def __init__(self, kernel: Any, cluster: Cluster | None, session: Session | None = None):
        self._kernel = kernel
        self._session = session
        self._cluster = cluster
        self._board: Board | None = None
        self._form: Form | None = None
        self._apart = Apart(kernel)
        self._is_closed = False
        self._apart.run(self._make)
        self._unfollow = session.follow(self._apart.wrap(self._use)) if session is not None else lambda: None

    def _make(self) -> None:
        self.widget = widgets.column()
        self.widget.layout.padding = "4px"
        self.widget.comm.on_close(lambda _: self.close())
        self.widget.observe(lambda change: self.close() if change["new"] is None else None, "comm")
        self._use(self._cluster)

    def _use(self, cluster: Cluster | None) -> None:
        """From now on this one, or none."""
        if self._board is not None:
            self._board.close()
        self._cluster, self._board, self._form = cluster, None, None
        if cluster is not None:
            self._board = Board(cluster, self._kernel, self._gone)
        self._arrange()
        if self._board is not None:
            self._board.open()

    def _gone(self) -> None:
        self._arrange(is_form_needed=True)

    def _arrange(self, *, is_form_needed: bool = False) -> None:
        children = [] if self._board is None else [self._board.widget]
        if self._session is not None and (self._board is None or is_form_needed):
            if self._form is None:
                self._form = Form(self._session.kind, self._kernel, self._session.use)
            children.append(self._form.widget)
        self.widget.children = children

    def close(self) -> None:
        """Look no more, and take the widgets away."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unfollow()
        if self._board is not None:
            self._board.close()
        self._apart.run(self.widget.close)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The widget; and for a front end without widgets, the cluster as it is now."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {**self._still(), _WIDGET: view}

    def _still(self) -> dict[str, str]:
        if self._cluster is None:
            return draw_still(Sight("gone", "no cluster is in use; %dist start to make one"))
        try:
            return draw_still(Sight("live", "", self._cluster.status()))
        except JdistError as e:
            return draw_still(Sight("gone", str(e)))
