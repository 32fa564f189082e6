"""Recorded: a run as its cluster's controller has recorded it, for a front end that has missed some of its output."""

from collections.abc import Mapping
from typing import Any

from jdist.client.cluster import BaseCluster
from jdist.client.run import CellRun
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Output, RankDone
from jdist.core.messages.status import Notice
from jdist.notebook.output.render import render
from jdist.notebook.output.run_view import RunView, verdict_of
from jdist.notebook.output.transcript import Transcript
from jdist.notebook.text import remedy_text

Bundle = Mapping[str, Any]  # Data by MIME type.


def recorded_view(cluster: BaseCluster, run: CellRun, *, is_full: bool = False) -> RunView:
    """The run of :meth:`~jdist.client.cluster.AsyncCluster.read_run`, to be shown as it would have been shown live."""
    transcript, notices = Transcript(run.ranks), []

    def feed(message: Message | None) -> None:
        match message:
            case Output():
                for item in message.items:
                    transcript.feed(item)
            case RankDone():
                transcript.close([message.rank])
            case Notice():
                notices.append(remedy_text.worded(message))

    run.watch(feed)
    if run.is_done:
        transcript.close()
    return RunView(
        run=run.number,
        ranks=tuple(run.ranks),
        state="done" if run.is_done else "waiting" if run.state == "queued" else "running",
        elapsed=run.seconds,
        blocks=transcript.blocks(),
        outcomes=dict(run.outcomes),
        notices=tuple(notices),
        topology=cluster.facts.topology,
        timeout=run.timeout,
        first_failed=run.first_failure,
        verdict=verdict_of(run),
        cluster=cluster.name,
        cluster_id=cluster.id,
        paused=dict(run.paused),
        is_full=is_full,
    )


def recorded_bundle(cluster: BaseCluster, run: CellRun, *, is_full: bool = False) -> Bundle:
    """What a notebook's cell would show of the run; with ``is_full``, whole tracebacks."""
    return render(recorded_view(cluster, run, is_full=is_full))
