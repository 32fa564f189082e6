"""Doctor: nodes are examined, those of the cluster in use or those that a start's words name."""

from __future__ import annotations

from jdist.client.blocking import bridge
from jdist.client.doctor.diagnosis import Diagnosis
from jdist.client.doctor.preflight import examine_beforehand
from jdist.notebook.options import start_parser
from jdist.notebook.output.screen import Shown, plain
from jdist.notebook.session import Session
from jdist.notebook.text.doctor_text import diagnosis_bundle
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs.lifecycle import split_at, start_options

Words = list[str]

_BURST = 0.3
_OWN_WORDS = {"--no-bandwidth"}


def doctor(s: Session, words: Words) -> Diagnosis | None:
    """check nodes and the ways between them; with options of start: those that it would use, before it"""
    before, _, after = split_at(words, "--")
    p = start_parser(typed("doctor"))
    p.description = (
        "Examine the nodes of the cluster in use and every way between two of them. Without a cluster, or with options "
        "of start: start one of one rank a node, examine it, and end it again."
    )
    p.add_argument("--no-bandwidth", action="store_true", help="send no bursts between the nodes")
    o = p.parse(before)
    burst = 0.0 if o.no_bandwidth else _BURST
    steps = _Steps(s)
    if s.current is not None and not set(words) - _OWN_WORDS:
        diagnosis = s.cluster.doctor(burst, on_step=steps.note)
    else:
        options = {"burst": burst, "on_step": steps.note, "kind": s.kind, **start_options(o, after)}
        diagnosis = bridge().call(examine_beforehand(**options))
    steps.end(diagnosis)
    return diagnosis if s.kind == "command line" else None


class _Steps:
    """A line that says what is being done, and the diagnosis in its place."""

    def __init__(self, s: Session):
        self._screen = s.screen
        self._shown: Shown | None = None

    def note(self, text: str) -> None:
        if not self._screen.is_live:
            return
        if self._shown is None:
            self._shown = self._screen.show(plain(text))
        else:
            self._shown.update(plain(text))

    def end(self, diagnosis: Diagnosis) -> None:
        bundle = diagnosis_bundle(diagnosis)
        if self._shown is None:
            self._screen.show(bundle)
        else:
            self._shown.update(bundle)
