"""Exports: the session's cells as a script: export."""

from __future__ import annotations

from jdist.core.errors import UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.remedy import Remedy
from jdist.notebook.export import export as write_script
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

Words = list[str]


def export(s: Session, words: Words) -> None:
    """the session's %%dist cells as a script that torchrun runs: export FILE.py [--force]"""
    p = ArgumentParser(typed("export"), "The cells of this session, in order, as one script that torchrun runs.")
    p.add_argument("file", metavar="FILE.py")
    p.add_argument("--force", action="store_true", help="replace a file that export did not write, or that was edited")
    o = p.parse(words)
    if s.exportable is None:
        remedies = (Remedy("start", "make one, on which cells run that can be exported"),)
        raise UsageError("no cluster is in use", remedies=remedies)
    made = write_script(s.exportable, o.file, force=o.force)
    cells = f"{made.cells} cell{'' if made.cells == 1 else 's'}"
    left_out = f", {made.left_out} left out" if made.left_out else ""
    s.say(f"written to {o.file}: {cells}{left_out}; its first lines say how to run it")
    for warning in made.warnings:
        s.say(f"⚠ {warning}")
