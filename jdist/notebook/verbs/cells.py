"""Cells and scripts: run, auto."""

from __future__ import annotations

from jdist.client.expressions import script_cell
from jdist.core.errors import UsageError
from jdist.core.quantities import ArgumentParser, parse_duration
from jdist.notebook.options import ranks_parser
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

Words = list[str]


def run(s: Session, words: Words) -> None:
    """a torchrun script on every rank, in the live session: run [-r RANKS] [-t S] SCRIPT [args]"""
    p = ranks_parser(typed("run"), "A script on every rank, as __main__, in the live session.")
    p.add_argument("-t", "--timeout", type=parse_duration)
    at = next((i for i, w in enumerate(words) if w.endswith(".py")), None)
    if at is None:
        p.add_argument("script", nargs="*")
        p.parse(words)
        raise UsageError(f"{typed('run')} [-r RANKS] [-t S] SCRIPT.py [args]: no script is named")
    o = p.parse(words[:at])
    run_cell(s, script_cell(words[at], words[at + 1 :]), s.cluster.select(o.ranks, o.group), o.timeout)


def run_cell(s: Session, code: str, ranks: tuple[int, ...], timeout: float | None = None) -> None:
    """Run and follow; raises the run's error."""
    cell = s.cluster.submit(code, ranks, timeout=timeout, allow_stdin=len(ranks) == 1)
    s.last_run = cell
    display = RunDisplay(s.cluster, cell, s.screen, timeout=timeout)
    display.tell(s.take_missed())
    display.follow()
    s.take_missed()  # the display has shown it
    cell.check()


def auto(s: Session, words: Words) -> None:
    """send every plain cell to the ranks: auto on|off"""
    p = ArgumentParser(typed("auto"), "Send every plain cell to the ranks.")
    p.add_argument("state", choices=["on", "off"])
    o = p.parse(words)
    if o.state == "on":
        name = s.cluster.name
        here = "cells that begin with % or ! run here"
        s.say(f"auto is on: plain cells run on all ranks of {name}; {here}. {typed('auto off')} ends it")
    else:
        s.say("auto is off: plain cells run in the notebook")
    s.is_auto = o.state == "on"
