"""Verbs: what stands behind ``%dist VERB`` and ``jdist VERB``. Each takes the session and the words after the verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jdist.core.errors import UsageError, nearest
from jdist.core.quantities import HelpWanted
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed, worded_errors
from jdist.notebook.verbs import (
    cells,
    code,
    doctor,
    exports,
    groups,
    invite,
    lifecycle,
    manifests,
    membership,
    panel,
    ranks,
    traces,
    values,
)

Words = list[str]

VERBS: dict[str, Callable[[Session, Words], Any]] = {
    "start": lifecycle.start,
    "attach": lifecycle.attach,
    "list": lifecycle.list_,
    "detach": lifecycle.detach,
    "stop": lifecycle.stop,
    "status": ranks.status,
    "panel": panel.panel,
    "interrupt": ranks.interrupt,
    "restart": ranks.restart,
    "add-node": membership.add_node,
    "remove": membership.remove,
    "invite": invite.invite,
    "join": invite.join,
    "manifest": manifests.manifest,
    "group": groups.group,
    "mesh": groups.mesh,
    "groups": groups.groups,
    "pull": values.pull,
    "push": values.push,
    "broadcast": values.broadcast,
    "restore": values.restore,
    "scatter": values.scatter,
    "gather": values.gather,
    "show": values.show,
    "check": values.check,
    "trace": traces.trace,
    "sync": code.sync,
    "doctor": doctor.doctor,
    "run": cells.run,
    "auto": cells.auto,
    "export": exports.export,
    "logs": ranks.logs,
    "console": ranks.console,
}


def usage() -> str:
    """Every verb with its line."""
    return "\n".join(f"{typed(name.ljust(10))} {(verb.__doc__ or '').strip()}" for name, verb in VERBS.items())


def call(s: Session, name: str, words: Words) -> Any:
    """Carry out a verb. Raises UsageError naming the nearest."""
    verb = VERBS.get(name)
    if verb is None:
        raise UsageError(f"{typed('').rstrip()} has no verb {name!r}{nearest(name, VERBS)}")
    try:
        with worded_errors():
            return verb(s, words)
    except HelpWanted as text:
        s.say(str(text))
        return None
