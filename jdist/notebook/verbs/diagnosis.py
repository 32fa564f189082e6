"""Verbs that diagnose: the doctor examines nodes and the network between them, the trace shows a run's collectives."""

from argparse import Namespace
from typing import Any

from jdist.client import find
from jdist.client.blocking import bridge
from jdist.client.doctor.diagnosis import Diagnosis
from jdist.client.doctor.preflight import examine_beforehand
from jdist.client.trace.columns import MIME, columns
from jdist.core.quantities import parse_count
from jdist.notebook.options import add_start_options, at_dashes, start_options
from jdist.notebook.output.screen import Replaceable, plain
from jdist.notebook.session import Session
from jdist.notebook.text.doctor_text import diagnosis_bundle
from jdist.notebook.verbs.registry import Words, option, verb

_BURST = 0.3  # Seconds for which nodes send to each other to measure the bandwidth.
_NO_BURST = "--no-bandwidth"
_MOST_CALLS = 20_000  # A notebook keeps the trace beside its picture up to so many calls, of some 20 bytes each.


def _finds_cluster(words: Words) -> bool:
    """A running cluster is examined unless other nodes are named."""
    return not set(words) - {_NO_BURST} and bool(find.connections())


@verb(
    "doctor",
    add_start_options,
    option(_NO_BURST, action="store_true", help="send no bursts between the nodes"),
    attaches=_finds_cluster,
    split=at_dashes,
)
def doctor(s: Session, o: Namespace) -> bool | None:
    """check nodes and the network between them; with options of start: the nodes that it would use, before it

    Without a cluster, or with options of start: start one of one rank a node, examine it, and end it again.
    """
    burst = 0.0 if o.no_bandwidth else _BURST
    spot = Replaceable(s.screen)

    def on_step(text: str) -> None:
        if s.screen.is_live:
            spot.show(plain(text))

    diagnosis: Diagnosis
    if s.current is not None and not set(o.words) - {_NO_BURST}:
        diagnosis = s.cluster.doctor(burst, on_step=on_step)
    else:
        options = {"burst": burst, "on_step": on_step, "kind": s.kind, **start_options(o)}
        diagnosis = bridge().call(examine_beforehand(**options))
    spot.show(diagnosis_bundle(diagnosis))
    return diagnosis.is_well if s.kind == "command line" else None


@verb(
    "trace",
    option("--run", type=parse_count, default=0, metavar="N", help="this run; default: the last one"),
    option("--save", metavar="FILE", help="write it as a Chrome trace, which ui.perfetto.dev opens"),
)
def trace(s: Session, o: Namespace) -> None:
    """the last run's collectives by rank as a timeline, with who waited for whom: trace [--run N] [--save FILE]"""
    found = s.cluster.trace(o.run)
    shown: dict[str, Any] = {"text/plain": repr(found), "text/html": found._repr_html_()}
    if sum(map(len, found.calls.values())) <= _MOST_CALLS:
        shown[MIME] = columns(found.report, s.cluster.name)
    s.screen.show(shown)
    if o.save:
        s.echo(f"written to {found.save(o.save)}: ui.perfetto.dev opens it")
