"""Extension: jdist in a Jupyter server: its configuration, routes and events, and its record of activity."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
from jupyter_events import EventLogger
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import Dict, Int, List, Unicode

from jdist.core.errors import UsageError
from jdist.server.cluster_list import ClusterList
from jdist.server.event_feed import ClusterEvent
from jdist.server.policy import Policy
from jdist.server.routes import ROUTES
from jdist.server.routes.handler import RESOURCE, cross

SCHEMA = Path(__file__).with_name("events.yaml")
SCHEMA_ID = "https://schema.jupyter.org/jdist/cluster/v1"
_BEGIN_TIMEOUT = 10.0
_END_TIMEOUT = 45.0  # Seconds for the starts that are under way to be undone.


class Jdist(ExtensionApp):
    """``c.Jdist`` in a jupyter server's configuration."""

    name = RESOURCE
    description = "Clusters of jdist in the browser"

    max_ranks = Int(
        0, min=0, help="Ranks that may run in all clusters together, for starts from a browser; 0: any number."
    ).tag(config=True)
    allowed_launchers = List(
        Unicode(), help="Launchers that a start from a browser may use; empty: all that are installed."
    ).tag(config=True)
    default_args = Dict(
        help='Defaults of starts from a browser, such as {"launcher": "slurm", "launcher_args": ["-p", "gpu"]}.'
    ).tag(config=True)

    _clusters: ClusterList | None = None  # None before the server runs.

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
    def clusters(self) -> ClusterList:
        """This user's clusters. Raises UsageError before the server runs."""
        if self._clusters is None:
            raise UsageError("jdist is not ready yet; ask again")
        return self._clusters

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        loop, events = serverapp.io_loop, self._events

        def emit(event: ClusterEvent) -> None:
            loop.add_callback(events.emit, schema_id=SCHEMA_ID, data=msgspec.json.decode(msgspec.json.encode(event)))

        def record() -> None:
            loop.add_callback(self._record_activity)

        policy = Policy(self.max_ranks, tuple(self.allowed_launchers), dict(self.default_args))

        async def make() -> ClusterList:
            return ClusterList(policy, emit, self._is_watched, record, self.log)

        self._clusters = await cross(make(), _BEGIN_TIMEOUT)

    def _record_activity(self) -> None:
        """Running cells keep the server from being culled; an idle cluster does not."""
        self._server.web_app.settings["last_activity_times"][RESOURCE] = datetime.now(UTC)

    def _is_watched(self) -> bool:
        """Whether a browser listens to events."""
        listeners = self._events._modified_listeners  # noqa: SLF001 — there is no public way to ask
        return bool(listeners.get(SCHEMA_ID))

    async def stop_extension(self) -> None:
        if self._clusters is not None:
            await cross(self._clusters.close(), _END_TIMEOUT)
