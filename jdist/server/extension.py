"""Extension: jdist in a jupyter server: its configuration, its routes, its events, and its mark of activity."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jupyter_events import EventLogger
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import Dict, Int, List, Unicode

from jdist.core.errors import UsageError
from jdist.server.cluster_list import Roster
from jdist.server.crossing import cross
from jdist.server.policy import Policy
from jdist.server.routes import ROUTES
from jdist.server.snapshots import Picture

NAME = "jdist"
SCHEMA = Path(__file__).with_name("events.yaml")
SCHEMA_ID = "https://schema.jupyter.org/jdist/cluster/v1"
_BEGIN = 10.0
_END = 45.0
"""Seconds for the starts that are under way to be undone."""


class Jdist(ExtensionApp):
    """``c.Jdist`` in a jupyter server's configuration."""

    name = NAME
    description = "Clusters of jdist in the browser"

    max_ranks = Int(
        0, min=0, help="Ranks that may run in all clusters together, for starts from a browser; 0: any number."
    ).tag(config=True)
    allowed_launchers = List(
        Unicode(), help="Launchers that a start from a browser may use; empty: all that are installed."
    ).tag(config=True)
    default_args = Dict(
        help='What a start from a browser does not say, such as {"launcher": "slurm", "launcher_args": ["-p", "gpu"]}.'
    ).tag(config=True)

    _roster: Roster | None = None
    """Once the server runs."""

    def initialize_settings(self) -> None:
        self._events.register_event_schema(SCHEMA)

    def initialize_handlers(self) -> None:
        self.handlers.extend(ROUTES)

    @property
    def _server(self) -> ServerApp:
        if not isinstance(self.serverapp, ServerApp):
            raise TypeError("the jdist extension belongs to a jupyter server")
        return self.serverapp

    @property
    def _events(self) -> EventLogger:
        logger = self._server.event_logger
        if logger is None:
            raise TypeError("the jdist extension needs the jupyter server's events")
        return logger

    @property
    def roster(self) -> Roster:
        """This user's clusters. Raises UsageError before the server runs."""
        if self._roster is None:
            raise UsageError("jdist is not ready yet; ask again")
        return self._roster

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        loop, events = serverapp.io_loop, self._events

        def emit(event: Picture) -> None:
            loop.add_callback(events.emit, schema_id=SCHEMA_ID, data=event)

        def mark() -> None:
            loop.add_callback(self._mark_activity)

        policy = Policy(self.max_ranks, tuple(self.allowed_launchers), dict(self.default_args))

        async def make() -> Roster:
            return Roster(policy, emit, self._is_watched, mark)

        self._roster = await cross(make(), _BEGIN)

    def _mark_activity(self) -> None:
        """Cells that run keep the server from being culled; a cluster that is idle does not."""
        self._server.web_app.settings["last_activity_times"][NAME] = datetime.now(UTC)

    def _is_watched(self) -> bool:
        """Whether a browser listens to events."""
        listeners = self._events._modified_listeners  # noqa: SLF001 — there is no public way to ask
        return bool(listeners.get(SCHEMA_ID))

    async def stop_extension(self) -> None:
        if self._roster is not None:
            await cross(self._roster.close(), _END)
