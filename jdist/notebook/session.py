"""Session: the cluster, the screen and the names of a notebook or a terminal."""

from collections.abc import Callable, Iterable
from typing import Any

from jdist.client.cluster import Cluster
from jdist.client.lifecycle.sites import split_name
from jdist.client.run import CellRun
from jdist.core.errors import Remedy, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import Notice, Stopped
from jdist.notebook.output.display import WidgetScreen
from jdist.notebook.output.screen import Screen, plain
from jdist.notebook.text import remedy_text
from jdist.notebook.text.markup import naming


class Session:
    """One user's session. ``namespace`` is where pulled values are bound and pushed ones are found."""

    def __init__(self, screen: Screen, namespace: dict[str, Any], kind: str):
        self.screen = screen
        self.namespace = namespace
        self.kind = kind
        self.current: Cluster | None = None
        self.exportable: Cluster | None = None  # The cluster in use or the last one, whose cells can be exported.
        self.last_run: CellRun | None = None
        self.widgets: WidgetScreen | None = None  # Of the ranks of the cluster in use.
        self.make_widgets: Callable[[Cluster], WidgetScreen | None] = lambda _cluster: None
        self.is_auto = False
        self.debugged: tuple[int, ...] = ()  # Ranks whose failure is being debugged: cells run where they failed.
        self._notices: list[str] = []
        self._link: object = None  # The link to the controller that the user has seen at work last.
        self._unwatch: Callable[[], None] = lambda: None
        self._followers: list[Callable[[Cluster | None], None]] = []
        self._state_followers: list[Callable[[], None]] = []

    @property
    def attached(self) -> Cluster | None:
        """The cluster in use, revived if its controller died; None if there is none or it is gone."""
        if self.current is not None and not self.current.asynchronous.link.is_sound:
            self.current.revived()
        return None if self.current is None or self.current.asynchronous.link.lost else self.current

    @property
    def cluster(self) -> Cluster:
        """The cluster in use. Raises UsageError when there is none, or it is gone."""
        if (attached := self.attached) is not None:
            return attached
        if self.current is None:
            remedies = (Remedy("start", "make one"), Remedy("attach", "use a running one"))
            raise UsageError("no cluster is in use", remedies=remedies)
        link, self.current = self.current.asynchronous.link, None
        self._tell_state()
        raise UsageError(link.loss().message, remedies=link.remedies)

    def use(self, cluster: Cluster | None) -> None:
        """Use this cluster from now on; it is also bound as ``cluster`` in a notebook that has no such name."""
        if self.current is not None and self.namespace.get("cluster") is self.current:
            del self.namespace["cluster"]
        self.current = cluster
        self.debugged = ()
        self.exportable = cluster or self.exportable
        self._unwatch()
        self._unwatch = lambda: None
        self._notices = []
        self.widgets = None if cluster is None else self.make_widgets(cluster)
        if cluster is not None:
            self.namespace.setdefault("cluster", cluster)
            self._unwatch = cluster.asynchronous.watch(self._on_message)
            self._link = cluster.asynchronous.link
        for follower in list(self._followers):
            follower(cluster)

    @property
    def usable(self) -> Cluster | None:
        """The cluster in use unless it has ended; one whose controller may be started again has not."""
        cluster = self.current
        link = None if cluster is None else cluster.asynchronous.link
        return None if link is None or (link.lost and not link.is_orphaned) else cluster

    def follow(self, follower: Callable[[Cluster | None], None]) -> Callable[[], None]:
        """Call ``follower`` with each cluster, or None, that is used from now on; returns the way to end that."""
        self._followers.append(follower)
        return lambda: self._followers.remove(follower)

    def follow_state(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` when auto is turned on or off, and on the client's loop when the cluster in use has ended;
        returns the way to end that.
        """
        self._state_followers.append(follower)
        return lambda: self._state_followers.remove(follower)

    def set_auto(self, is_auto: bool) -> None:
        """Send plain cells to the ranks, or run them in the notebook."""
        self.is_auto = is_auto
        self._tell_state()

    def _tell_state(self) -> None:
        for follower in list(self._state_followers):
            follower()

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Notice):
            self._notices.append(remedy_text.worded(message))
        elif isinstance(message, Stopped) and self.usable is None:
            self._tell_state()

    def select_for_cell(self, ranks: str | None, group: str | None) -> tuple[int, ...]:
        """The ranks of a cell with this selection: without one, those that are debugged, or paused, or all."""
        is_chosen = ranks is not None or group is not None
        return self.debugged if self.debugged and not is_chosen else self.cluster.select_paused(ranks, group)

    def frames_of(self, ranks: Iterable[int]) -> str:
        """In which frames a cell on these ranks runs, in words; "" for the ranks' own names."""
        chosen = set(ranks)
        if chosen <= set(self.debugged):
            return "in the frames that failed"
        paused = chosen & set(self.cluster.facts.paused)
        return (
            ""
            if not paused
            else "in the paused frames"
            if paused == chosen
            else f"in frames paused on {naming(paused)}"
        )

    def drain_notices(self) -> list[str]:
        """Notices since the last call, such as of a rank that died while idle."""
        notices, self._notices = self._notices, []
        return notices

    def drain_revival_notices(self) -> list[str]:
        """The notices since the last call, if the controller was started again meanwhile; else none, and they stay."""
        link = None if self.current is None else self.current.asynchronous.link
        if link is self._link or link is None:
            return []
        self._link = link
        return self.drain_notices()

    def there(self, path: str) -> str:
        """A path of the ranks as it is called here: of a cluster at a host behind ssh, with the host's name."""
        host, _ = split_name(self.cluster.name)
        return f"{host}:{path}" if host else path

    def echo(self, text: str) -> None:
        """Show a line."""
        self.screen.show(plain(text))
