"""Extension: jdist in a Jupyter server: its configuration, routes and events, and its record of activity."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
from jupyter_events import EventLogger
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import Dict, Int, List, Unicode

from jdist.server import routes  # noqa: F401 — it registers its routes
from jdist.server.cluster_list import ClusterEvent, ClusterList
from jdist.server.handler import RESOURCE, all_routes, cross
from jdist.server.starts import Policy

SCHEMA = Path(__file__).with_name("events.yaml")
SCHEMA_ID = "https://schema.jupyter.org/jdist/cluster/v1"
_BEGIN_TIMEOUT = 10.0
_END_TIMEOUT = 45.0  # Seconds for the starts that are under way to be undone.


class Jdist(ExtensionApp):
    """``c.Jdist`` in a jupyter server's configuration."""

    name = RESOURCE
    description = "Clusters of jdist in the browser"

    max_ranks = Int(
        0, min=0, help="Maximum number of ranks in all clusters together, for starts from a browser; 0: no limit."
    ).tag(config=True)
    allowed_launchers = List(
        Unicode(), help="Launchers that a start from a browser may use; empty: all that are installed."
    ).tag(config=True)
    default_args = Dict(
        help='Defaults of starts from a browser, such as {"launcher": "slurm", "launcher_args": ["-p", "gpu"]}.'
    ).tag(config=True)

    clusters: ClusterList | None = None  # This user's clusters; None before the server runs.

    def initialize_settings(self) -> None:
        self._events.register_event_schema(SCHEMA)

    def initialize_handlers(self) -> None:
        self.handlers.extend(all_routes())

    @property
    def _events(self) -> EventLogger:
        if not isinstance(self.serverapp, ServerApp) or self.serverapp.event_logger is None:
            raise TypeError("the jdist extension needs the events of the jupyter server that it belongs to")
        return self.serverapp.event_logger

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        loop, events = serverapp.io_loop, self._events
        activity: dict[str, datetime] = serverapp.web_app.settings["last_activity_times"]

        def emit(event: ClusterEvent) -> None:
            loop.add_callback(events.emit, schema_id=SCHEMA_ID, data=msgspec.json.decode(msgspec.json.encode(event)))

        def is_watched() -> bool:
            listeners = events._modified_listeners  # noqa: SLF001 — there is no public way to ask
            return bool(listeners.get(SCHEMA_ID))

        def record_activity() -> None:
            """Running cells keep the server from being culled; an idle cluster does not."""
            loop.add_callback(lambda: activity.update({RESOURCE: datetime.now(UTC)}))

        async def make() -> ClusterList:
            policy = Policy(self.max_ranks, tuple(self.allowed_launchers), dict(self.default_args))
            return ClusterList(policy, emit, is_watched, record_activity, self.log)

        self.clusters = await cross(make(), _BEGIN_TIMEOUT)

    async def stop_extension(self) -> None:
        if self.clusters is not None:
            await cross(self.clusters.close(), _END_TIMEOUT)
