"""Terminal: the verbs as ``jdist`` commands. What needs a namespace of values stays in the notebook."""

from __future__ import annotations

from jdist.client import find
from jdist.notebook import verbs
from jdist.notebook.output.screen import TerminalScreen
from jdist.notebook.session import Session

_NAMES = (
    "start",
    "list",
    "status",
    "stop",
    "attach",
    "interrupt",
    "restart",
    "add-node",
    "remove",
    "invite",
    "manifest",
    "groups",
    "run",
    "trace",
    "logs",
    "console",
    "show",
    "check",
    "doctor",
    "sync",
)
COMMANDS = {name: (verbs.VERBS[name].__doc__ or "").strip() for name in _NAMES}


def run_command(name: str, words: list[str]) -> int:
    """Carry out a command on the newest cluster, or the one that ``--cluster NAME`` names. The exit code.

    Raises HelpWanted where the first word asks for help, which takes no cluster.
    """
    session = Session(TerminalScreen(), {}, "command line")
    try:
        if words[:1] in (["-h"], ["--help"]):
            verbs.VERBS[name](session, ["--help"])
        return _carry_out(session, name, words)
    finally:
        if session.current is not None:
            session.current.detach()


def _carry_out(session: Session, name: str, words: list[str]) -> int:
    if name in ("list", "stop", "attach", "start") or (name == "manifest" and "--line" in words):
        verbs.call(session, name, words)
    elif name == "doctor":
        return _doctor(session, words)
    else:
        cluster, rest = _take_cluster(words)
        verbs.call(session, "attach", [cluster] if cluster else []) if cluster else _attach_quietly(session)
        found = verbs.call(session, name, _positional_rank(name, rest))
        if name == "check":
            print(found)
            return 0 if found else 1
    return 0


def _doctor(session: Session, words: list[str]) -> int:
    """On a cluster if one runs and no other nodes are named. 1 if something was found that breaks."""
    cluster, rest = _take_cluster(words)
    if cluster:
        verbs.call(session, "attach", [cluster])
    elif not rest and find.connections():
        _attach_quietly(session)
    found = verbs.call(session, "doctor", rest)
    return 0 if found is None or found.is_well else 1


def _attach_quietly(session: Session) -> None:
    from jdist.client.blocking import Cluster

    session.use(Cluster.attach(None, kind="command line"))


def _take_cluster(words: list[str]) -> tuple[str, list[str]]:
    if "--cluster" in words[:-1]:
        at = words.index("--cluster")
        return words[at + 1], words[:at] + words[at + 2 :]
    return "", words


def _positional_rank(name: str, words: list[str]) -> list[str]:
    """``jdist console 2`` as ``console -r 2``."""
    if name in ("console", "logs") and words and not words[0].startswith("-"):
        return ["-r", *words]
    return words
