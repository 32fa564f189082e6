"""Variables: lists the names that cells have bound on a rank, and deletes some. Contents are read only on request."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from jdist.core.errors import describe_error
from jdist.core.messages.values import ListVariables, VariableFacts, VariableList
from jdist.worker.values.describe import describe
from jdist.worker.values.digests import digest_of, digests
from jdist.worker.values.metadata import MetadataReader, is_code, is_listable, matches

_MOST = 2000  # Names in one answer.

UserNames = Callable[[Mapping[str, Any]], Iterable[tuple[str, Any]]]


class VariableLister:
    """Answers `ListVariables`. ``user_names`` leaves out the names of IPython and of jdist."""

    def __init__(self, user_names: UserNames):
        self._user_names = user_names

    def list(
        self, query: ListVariables, namespace: Mapping[str, Any], frame: str, report: Callable[[int], None]
    ) -> VariableList:
        """``report`` takes the number of variables whose contents have been read."""
        # A copy, which is made at once: cells go on binding and deleting names.
        names = {name: value for name, value in dict(namespace).items() if is_listable(name)}
        found = dict(self._user_names(names))
        patterns = tuple(part.strip() for part in query.pattern.split(",") if part.strip())
        if patterns:
            chosen = sorted(name for name in found if matches(name, patterns))
        else:
            chosen = sorted(name for name, value in found.items() if name[:1] != "_" and not is_code(value))
        most = min(query.most, _MOST)
        listed = chosen[:most]
        reader = MetadataReader()
        variables = [reader.read(name, found[name]) for name in listed]
        if query.numbers or query.digests:
            for i, facts in enumerate(variables):
                variables[i] = _read_contents(facts, found[facts.name], query)
                report(i + 1)
        hidden = () if patterns else tuple(sorted(found.keys() - set(chosen))[:_MOST])
        return VariableList(tuple(variables), len(chosen) - len(listed), hidden, frame)


def _read_contents(facts: VariableFacts, value: Any, query: ListVariables) -> VariableFacts:
    """With numbers and a digest. The user's code may run here, as in pickling or in a ``__repr__``."""
    if facts.value:
        return facts  # that is all of it
    try:
        if query.numbers and facts.shape is not None:
            found = describe(value)
            facts = replace(facts, mean=_finite(found.mean), norm=_finite(found.norm))
        if query.digests and not is_code(value):
            entries = digests(value)
            pieces = (part.encode("utf-8", "surrogatepass") for entry in entries for part in entry)
            facts = replace(facts, digest=digest_of(*pieces))
    except BaseException as e:  # what it raises says nothing of the other variables; it may even exit
        facts = replace(facts, problem=describe_error(e)[:200])
    return facts


def _finite(number: float | None) -> float | None:
    """JSON has neither infinities nor NaN."""
    return number if number is None or math.isfinite(number) else None


def delete_names(names: tuple[str, ...], namespace: dict[str, Any]) -> int:
    """Delete the names that there are, as a cell on the rank; how many."""
    there = [name for name in names if name in namespace]
    for name in there:
        del namespace[name]
    return len(there)
