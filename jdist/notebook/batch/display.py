"""Batch display: a job's output as plain lines. The ranks' stdout goes to stdout, and everything else to stderr."""

import sys
from collections.abc import Iterable

from msgspec import structs

from jdist.client.cluster import Cluster
from jdist.client.run import CellRun
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Verdict, VerdictChanged
from jdist.core.messages.runs import Output, RankDone, Text
from jdist.core.messages.status import Notice
from jdist.notebook.output.render import render
from jdist.notebook.output.run_view import RunView
from jdist.notebook.output.screen import Bundle, TerminalScreen, Update
from jdist.notebook.output.terminal_emulator import LineStream
from jdist.notebook.text import remedy_text


class ErrorScreen(TerminalScreen):
    """Standard error: every change is printed as a new line."""

    def show(self, bundle: Bundle) -> Update:
        last = ""

        def update(bundle: Bundle) -> None:
            nonlocal last
            if bundle["text/plain"] != last:
                last = bundle["text/plain"]
                print(last, file=sys.stderr, flush=True)

        update(bundle)
        return update


class BatchDisplay:
    """Shows one run: each complete line of output, with the ranks that wrote it.

    Its cluster ends with it unless ``holds``, so no action on it is suggested.
    """

    def __init__(self, cluster: Cluster, run: CellRun, *, holds: bool = False, timeout: float | None = None):
        self._cluster = cluster
        self._run = run
        self._holds = holds
        self._timeout = timeout
        self._out, self._err = LineStream(), LineStream()
        self._told: Verdict | None = None  # The verdict that stands in the log.
        self._has_failed = False  # Ranks of the run have failed.

    def handle(self, message: Message) -> None:
        """Show a message about the run."""
        match message:
            case Output():
                for item in message.items:
                    is_error = isinstance(item, Text) and item.stream == "stderr"
                    _write((self._err if is_error else self._out).feed(item), is_error=is_error)
            case VerdictChanged(_, verdict):
                self._tell_verdict(verdict)
            case RankDone():
                self._has_failed |= message.kind != "value"
            case Notice() if message.run or self._holds or not self._has_failed:  # the summary has later losses
                tell(remedy_text.worded(message))

    def _tell_verdict(self, verdict: Verdict | None) -> None:
        """Write a verdict once: while ranks wait for a slow or paused one, it is sent again each second."""
        if verdict is None:
            tell("● the run is making progress again")
        elif not self._has_told(verdict):
            tell(structs.replace(verdict, remedies=()).text())
        self._told = verdict

    def _has_told(self, verdict: Verdict) -> bool:
        """Whether the user knows it. That ranks are lost is in a notice and in their outcomes."""
        return verdict.kind == "lost" or (self._told is not None and verdict.is_same_finding(self._told))

    def flush(self) -> None:
        """Show lines that have no end yet."""
        _write(self._out.close(), is_error=False)
        _write(self._err.close(), is_error=True)

    def finish(self, stopped: str = "") -> None:
        """Show the rest of the output, and how the run ended; ``stopped``: why its cluster is gone, if it is."""
        self.flush()
        run = self._run
        if stopped and any(o.kind == "lost" and o.error is None for o in run.outcomes.values()):
            tell(f"run {run.number} did not finish; cluster {self._cluster.name}: {stopped}")
            return
        view = RunView(
            run=run.number,
            ranks=tuple(run.ranks),
            state="done",
            elapsed=run.seconds,
            outcomes=dict(run.outcomes),
            topology=self._cluster.topology,
            first_failed=run.first_failure,
            verdict=run.verdict,
            has_told_verdict=run.verdict is not None and self._has_told(run.verdict),
            timeout=self._timeout,
            cluster=self._cluster.name,
            is_full=True,  # the cluster that could show the rest ends
        )
        tell(render(view)["text/plain"])


def tell(text: str) -> None:
    """Write a message from jdist itself."""
    print(text, file=sys.stderr, flush=True)


def _write(lines: Iterable[str], *, is_error: bool) -> None:
    stream = sys.stderr if is_error else sys.stdout
    if text := "".join(f"{line}\n" for line in lines):
        stream.write(text)
        stream.flush()
