"""The verbs as ``jdist`` commands. Verbs that need a namespace of values are in the notebook only."""

import os
import sys

from jdist.client.cluster import Cluster
from jdist.client.lifecycle.sites import AT, split_name
from jdist.core.errors import CellError, UsageError
from jdist.core.quantities import HelpWanted
from jdist.notebook.batch import command as batch
from jdist.notebook.batch.rules import exit_code
from jdist.notebook.options import at_dashes
from jdist.notebook.output.screen import TerminalScreen
from jdist.notebook.session import Session
from jdist.notebook.verbs.diagnosis import is_of_running
from jdist.notebook.verbs.registry import VERBS, call, never

COMMANDS = {name: verb.summary for name, verb in VERBS.items() if verb.attaches is not None}


def _take(option: str, words: list[str]) -> tuple[str | None, list[str]]:
    """The value of an option that any command takes, as ``--name VALUE`` or ``--name=VALUE``, and the other words.

    What stands after ``--`` is a launcher's.
    """
    for n, word in enumerate(at_dashes(words)[0]):
        if word == option and n + 1 < len(words):
            return words[n + 1], [*words[:n], *words[n + 2 :]]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}="), [*words[:n], *words[n + 1 :]]
    return None, words


def run_command(name: str, words: list[str]) -> int:
    """Carry out a command on the newest cluster or ``--cluster``'s; returns the exit code. Raises HelpWanted."""
    verb = VERBS[name]
    if words[:1] in (["-h"], ["--help"]):
        parser = batch.run_parser() if name == "run" else verb.parser()
        raise HelpWanted(parser.format_help().strip())
    cluster = ""
    if name == "run":
        found = batch.run_command(words)
        if isinstance(found, int):
            return found
        cluster, words = found.cluster, found.words
    session = Session(TerminalScreen(), {}, "command line")
    if name != "run" and verb.attaches is not never:
        named, words = _take("--cluster", words)
        at, words = _take("--at", words)
        host, _ = split_name(named, os.environ.get(AT, "") if at is None else at)
        cluster = named or ""
        if host and name == "doctor" and not is_of_running(words):
            how = f"to examine nodes before a start, or for a drill, run jdist doctor in a login: ssh {host}"
            raise UsageError(f"jdist doctor --at {host} examines a cluster that runs there; {how}")
        is_doctor_there = bool(host) and name == "doctor"  # no cluster here is needed for that
        finds = is_doctor_there or (verb.attaches is not None and verb.attaches(words))
        if finds and (host or at is not None):
            python, words = _take("--python", words)
            session.use(Cluster.attach(named, at=host, at_python=python or "", kind=session.kind))
            cluster = ""
    try:
        if cluster or (session.current is None and verb.attaches is not None and verb.attaches(words)):
            session.use(Cluster.attach(cluster or None, kind=session.kind))  # its name says where it is
        result = call(session, name, words)
    except CellError as e:
        if name != "run":
            raise
        print(e, file=sys.stderr)
        return exit_code(e.run)
    finally:
        if session.current is not None:
            session.current.detach()
    if result is not None and not isinstance(result, bool):
        print(result)
    return 0 if result is None or result else 1
