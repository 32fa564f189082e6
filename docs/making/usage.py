"""Usage: the pages about verbs and commands, made from the usage texts that ``--help`` prints."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from typing import Any

from jdist.commands import main
from jdist.core.quantities import HelpWanted
from jdist.notebook import verbs
from jdist.notebook.cli import COMMANDS
from jdist.notebook.options import cell_parser

_COLUMNS = "84"


def usage_of(call: Callable[[], Any]) -> str:
    """The usage text that `call` prints or raises for ``--help``."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), _COLUMNS
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            call()
    except HelpWanted as text:
        return str(text)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    if not printed.getvalue():
        raise ValueError(f"{call} prints no usage")
    return printed.getvalue().rstrip()


def verbs_page() -> str:
    """``%%dist`` and every ``%dist VERB``."""
    parts = [
        "# Verbs and cells\n\nThis is what `%dist VERB?` prints. `%dist` alone lists the verbs.",
        _entry("%%dist", "run a cell on all ranks, or on those that `-r` or `-g` name", cell_parser().parse),
    ]
    parts += [_entry(f"%dist {name}", verb.summary, _help_of(verb)) for name, verb in verbs.VERBS.items()]
    return "\n\n".join(parts)


def commands_page() -> str:
    """``jdist COMMAND``."""
    join = _entry("jdist join", "run a node's agent on the node until the cluster ends", lambda w: main(["join", *w]))
    run = _entry(
        "jdist run", "run a script as a job, or on a running cluster; see [Batch jobs](../batch.md)", _run_help
    )
    listed = "\n".join(f"| `jdist {name}` | {_escape(text)} |" for name, text in COMMANDS.items())
    return (
        "# Command line\n\nThe commands have the same names as the verbs in a notebook, and the same options except "
        "where listed below ([Verbs and cells](verbs.md)). They act on the newest cluster, or on the one that "
        "`--cluster NAME` names. The exit code is 0, 1 (a rank failed, or `doctor` found something that will break) or "
        "2 (wrong usage); that of `jdist run` is the script's.\n\n"
        f"| command | |\n|---|---|\n{listed}\n\n{run}\n\n{join}"
    )


def _run_help(words: list[str]) -> None:
    main(["run", *words])


def _help_of(verb: Callable[..., Any]) -> Callable[[list[str]], Any]:
    return lambda words: verb(None, words)


def _entry(title: str, text: str, call: Callable[[list[str]], Any]) -> str:
    text = text.strip()
    return f"## {title}\n\n{text[:1].upper()}{text[1:]}.\n\n```text\n{usage_of(lambda: call(['--help']))}\n```"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
