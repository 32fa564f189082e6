"""Missing names: if a NameError's name exists elsewhere, in the notebook or on other ranks, suggest how to copy it.
Ranks are asked only after such an error, and only for names.
"""

import contextlib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from jdist.client.blocking import Cluster
from jdist.client.run import CellRun
from jdist.core.errors import JdistError
from jdist.core.outcome import ErrorInfo
from jdist.core.ranks import RankSet, describe_ranks, ranks_by
from jdist.core.remedy import Remedy, sentence
from jdist.notebook.text import markup
from jdist.notebook.text.remedy_text import command

_MISSING = re.compile(r"name '(\w+)' is not defined")
_DEADLINE = 0.5  # Seconds for the ranks to answer.
_MOST = 256  # Ranks that are asked.


def advise(cluster: Cluster, run: CellRun, namespace: Mapping[str, Any]) -> None:
    """Give each rank's NameError in a run that has ended the actions that would bring the name there."""
    missing = ranks_by((r, name) for r, o in sorted(run.outcomes.items()) if (name := _missing(o.error)))
    for name, ranks in missing.items():
        remedies = tuple(_remedies(cluster, name, ranks, namespace))
        for rank in ranks:
            outcome = run.outcomes[rank]
            if outcome.error is not None and remedies:
                outcome.error = structs.replace(outcome.error, remedies=remedies)


def advice_here(cluster: Cluster, name: str) -> dict[str, str] | None:
    """What to show where the notebook itself lacks a name; None if no rank has it either."""
    kinds = _kinds(cluster, name)
    if not kinds:
        return None
    having = describe_ranks(kinds, "has")
    if "module" in kinds.values():
        text = f"{having} {name}, a module that was imported there; the notebook has to import it, too"
    else:
        text = sentence(f"{having} {name}", [Remedy("pull", "copy it into the notebook", name=name)], command)
    return {"text/plain": f"note: {text}", "text/html": markup.notice(text)}


def _missing(error: ErrorInfo | None) -> str:
    found = _MISSING.match(error.evalue) if error is not None and error.ename == "NameError" else None
    return found[1] if found is not None else ""


def _remedies(cluster: Cluster, name: str, ranks: list[int], namespace: Mapping[str, Any]) -> Iterable[Remedy]:
    lacking = "" if len(ranks) == cluster.world_size else str(RankSet(ranks))
    having = {r: kind for r, kind in _kinds(cluster, name).items() if r not in ranks}
    if having and "module" not in having.values():
        source = min(having)
        copied = f"copy it from rank {source}; {describe_ranks(having, 'has')} it"
        yield Remedy("restore", copied, name=f"{lacking} --from {source} {name}")
    elif having:
        yield Remedy("run_cell", f"import it there, too; {describe_ranks(having, 'has')} it", lacking)
    own = namespace.get(name)
    if isinstance(own, types.ModuleType):
        yield Remedy("run_cell", f"import {own.__name__} there; {name} is imported in the notebook only", lacking)
    elif name in namespace and not name.startswith("_") and not isinstance(own, Cluster):
        yield Remedy("push", "copy the notebook's", lacking, name)


def _kinds(cluster: Cluster, name: str) -> dict[int, str]:
    """The type of what the name is bound to, by rank that has it."""
    asked = list(range(min(cluster.world_size, _MOST)))
    answers = {}
    with contextlib.suppress(JdistError):  # the cluster has gone, or is being formed again
        answers = cluster.complete(name, len(name), asked, _DEADLINE)
    matches = {r: dict(zip(a.matches, a.types, strict=False)) for r, a in sorted(answers.items())}
    return {rank: found[name] for rank, found in matches.items() if name in found}
