"""Traces: the picture of a run's collectives: trace."""

from __future__ import annotations

from typing import Any

from jdist.client.trace.columns import MIME, columns
from jdist.core.quantities import ArgumentParser, parse_count
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

Words = list[str]

_MOST_KEPT = 20_000
"""Calls up to which a notebook keeps the trace itself beside its picture: some 20 bytes each."""


def trace(s: Session, words: Words) -> None:
    """the last run's collectives by rank as a timeline, with who waited for whom: trace [--run N] [--save FILE]"""
    p = ArgumentParser(typed("trace"), "A run's calls of torch.distributed by rank, and who waited for whom.")
    p.add_argument("--run", type=parse_count, default=0, metavar="N", help="this run; default: the last one")
    p.add_argument("--save", metavar="FILE", help="write it as a Chrome trace, which ui.perfetto.dev opens")
    o = p.parse(words)
    found = s.cluster.trace(o.run)
    shown: dict[str, Any] = {"text/plain": repr(found), "text/html": found._repr_html_()}
    if sum(map(len, found.calls.values())) <= _MOST_KEPT:
        shown[MIME] = columns(found.report, s.cluster.name)
    s.screen.show(shown)
    if o.save:
        s.say(f"written to {found.save(o.save)}: ui.perfetto.dev opens it")
