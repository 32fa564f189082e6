"""StartForm: starts a cluster from the panel, or attaches to a running one, when none is in use."""

import concurrent.futures
import shlex
import time
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from ipywidgets import BoundedIntText, Dropdown, Text

from jdist.client import find
from jdist.client.blocking import Cluster
from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Progress, Waiting
from jdist.core.errors import UsageError
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.launch.base import ENTRY_POINTS
from jdist.notebook.options import at_dashes, split_words, start_options, start_parser
from jdist.notebook.panel import html, widgets
from jdist.notebook.panel.part import PanelPart
from jdist.notebook.panel.widgets import field
from jdist.notebook.text.progress import describe_start
from jdist.notebook.text.remedy_text import typed, worded

_BACKENDS = [("as it fits", ""), ("gloo", "gloo"), ("nccl", "nccl"), ("mpi", "mpi")]
_EVERY = 0.5  # Seconds between two messages about a start.


class StartForm(PanelPart):
    """``widget`` is shown; ``on_cluster`` gets the cluster, on the client's loop."""

    def __init__(self, kind: str, kernel: Any, on_cluster: Callable[[Cluster], None]):
        super().__init__(kernel)
        self._kind = kind
        self._on_cluster = on_cluster
        self._starting: concurrent.futures.Future[None] | None = None
        self._shown_at = 0.0
        self._make()
        self.refresh()

    def _make(self) -> None:
        launchers = sorted({e.name for e in entry_points(group=ENTRY_POINTS)}, key=lambda name: (name != "local", name))
        self._launcher = field(Dropdown, "launcher", "how agents get onto the nodes", options=launchers)
        many = "how many nodes; with the local launcher all are on this machine"
        self._nodes = field(BoundedIntText, "nodes", many, "200px", value=1, min=1, max=100_000)
        self._nproc = field(Text, "ranks per node", "a number, or one per node: 2,1", placeholder="one per GPU, else 2")
        self._backend = field(Dropdown, "backend", "of the process groups", options=_BACKENDS)
        self._name = field(Text, "name", "the cluster's name", placeholder="a free one")
        self._more = field(Text, "more", f"more options, as after {typed('start')}", placeholder="--hosts a:2,b:2")
        self._command = widgets.markup()
        for each in (self._launcher, self._nodes, self._nproc, self._backend, self._name, self._more):
            each.observe(self._parentless.wrap(lambda _: self._show_command()), "value")
        self._start_button = self._button("Start", "start this cluster", self._start, "play", "primary")
        self._cancel_button = self._button("Cancel", "end what this start has begun", self._cancel, "stop")
        widgets.set_visible(self._cancel_button, is_visible=False)
        self._running = widgets.row()
        self.widget = widgets.column(
            widgets.markup(html.draw_heading("No cluster is in use here: start one")),
            widgets.row(self._launcher, self._nodes, self._nproc),
            widgets.row(self._backend, self._name, self._more),
            self._command,
            widgets.row(self._start_button, self._cancel_button),
            self._running,
            self._message,
        )

    def refresh(self) -> None:
        """Show the clusters that run now."""
        self._running.children = [
            self._button(f"Attach {name}", f"use the running cluster {name}", partial(self._attach, name), "plug")
            for name in list(find.connections())[:8]
        ]
        self._show_command()

    # ------------------------------------------------------------ start

    def words(self) -> list[str]:
        """The form's values as options of ``%dist start``. Raises UsageError."""
        values = {"--launcher": self._launcher.value, "-n": self._nproc.value, "--backend": self._backend.value}
        values |= {"--name": self._name.value, "-N": str(self._nodes.value)}
        usual = {"--launcher": "local", "-N": "1"}
        words = [w for option, v in values.items() if v.strip() and v != usual.get(option) for w in (option, v.strip())]
        return words + split_words(self._more.value)

    def _show_command(self) -> None:
        try:
            line = shlex.join([*typed("start").split(), *self.words()])
        except UsageError as e:
            line = str(e)
        self._command.value = html.draw_message(f"the same in a cell: {line}", is_error=False)

    def _start(self) -> None:
        own, rest = at_dashes(self.words())
        options = start_parser(typed("start")).parse(own)
        options.rest = rest
        start = partial(AsyncCluster.start, kind=self._kind, on_progress=self._progress, **start_options(options))
        self._begin("starting", start)

    def _attach(self, name: str) -> None:
        self._begin(f"attaching to {name}", partial(AsyncCluster.attach, name, kind=self._kind))

    def _begin(self, text: str, begin: Callable[[], Coroutine[Any, Any, AsyncCluster]]) -> None:
        if self._starting is not None and not self._starting.done():
            raise UsageError("a start is in progress")

        async def use() -> str:
            self._on_cluster(Cluster(await begin()))
            return ""

        self._began = time.monotonic()
        self._set_busy(True)
        self._starting = self._submit(text, use())

    def _progress(self, progress: Progress) -> None:
        """Show the progress; called on the client's loop."""
        match progress:
            case ClusterFacts() as facts:
                text = describe_start(facts, time.monotonic() - self._began)
            case Notice():
                text = worded(progress)
            case Waiting(text=text):
                pass
        if time.monotonic() >= self._shown_at + _EVERY or isinstance(progress, Notice):
            self._shown_at = time.monotonic()
            self._parentless.run(self._show_message, text)

    def _after_work(self, text: str, *, is_error: bool = False) -> None:
        self._set_busy(False)
        super()._after_work(text, is_error=is_error)

    def _cancel(self) -> None:
        if self._starting is not None:
            self._show_message("cancelling …")
            self._starting.cancel()

    def _set_busy(self, is_busy: bool) -> None:
        widgets.set_visible(self._cancel_button, is_busy)
        self._start_button.disabled = is_busy
