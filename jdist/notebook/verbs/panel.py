"""Panels: panel."""

from __future__ import annotations

from jdist.core.quantities import ArgumentParser
from jdist.notebook.output.screen import plain
from jdist.notebook.panel.open import open_panel
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.verbs import ranks

Words = list[str]


def panel(s: Session, words: Words) -> None:
    """a live panel: ranks, groups, verdicts, buttons that interrupt and restart; a form to start a cluster"""
    ArgumentParser(typed("panel"), "A panel of the cluster, kept up to date.").parse(words)
    if not s.screen.is_live:
        ranks.status(s, [])
        s.screen.show(plain("(a panel that is kept up to date needs a notebook; this is the cluster as it is now)"))
        return
    current = s.current
    if current is not None:
        current.revived()
    if current is not None and current.asynchronous.link.lost:
        current = None
    s.screen.show(open_panel(current, s)._repr_mimebundle_())
