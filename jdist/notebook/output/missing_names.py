"""Missing names: if a name or a module that ranks lack exists elsewhere, suggest how to copy it.
Ranks are asked only after a NameError, and only for names.
"""

import contextlib
import importlib.util
import os
import re
import shlex
import types
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from jdist.client.cluster import Cluster
from jdist.client.run import CellRun
from jdist.core.errors import JdistError, Remedy, sentence
from jdist.core.import_path import this_interpreter
from jdist.core.outcome import ErrorInfo
from jdist.core.ranks import RankSet, describe_ranks, ranks_by
from jdist.notebook.text import markup
from jdist.notebook.text.remedy_text import command

_MISSING = re.compile(r"name '(\w+)' is not defined")
_MISSING_MODULE = re.compile(r"No module named '(\w+)")
_DEADLINE = 0.5  # Seconds for the ranks to answer.
_MOST = 256  # Ranks that are asked.


def advise(cluster: Cluster, run: CellRun, namespace: Mapping[str, Any]) -> None:
    """Give each rank's NameError or ModuleNotFoundError the actions that would bring the name or the module there.

    ``run`` has ended.
    """
    missing = ranks_by((r, what) for r, o in sorted(run.outcomes.items()) if (what := _missing(o.error)))
    for (error, name), ranks in missing.items():
        is_module = error == "ModuleNotFoundError"
        remedies = tuple(_module_remedies(name) if is_module else _remedies(cluster, name, ranks, namespace))
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


def _missing(error: ErrorInfo | None) -> tuple[str, str] | None:
    """The kind of error, and the name or top-level module that is missing."""
    if error is None:
        return None
    pattern = {"NameError": _MISSING, "ModuleNotFoundError": _MISSING_MODULE}.get(error.ename)
    found = pattern.match(error.evalue) if pattern is not None else None
    return (error.ename, found[1]) if found is not None else None


def _module_remedies(name: str) -> Iterable[Remedy]:
    """Copy the directory in which the notebook finds a module of the user's that the ranks' nodes lack."""
    spec = None
    with contextlib.suppress(Exception):  # a finder of the user's own, or a module without a specification
        spec = importlib.util.find_spec(name)
    if spec is None:
        return
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    for place in places:
        directory = os.path.dirname(os.path.abspath(place))
        if not this_interpreter().has_installed(directory):
            copied = place if directory == os.path.expanduser("~") else directory
            beside = os.path.relpath(copied)
            shown = copied if beside.startswith(os.pardir) else beside
            yield Remedy("sync", f"copy {name} to the nodes, which lack it", name=shlex.quote(shown))
            return


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
