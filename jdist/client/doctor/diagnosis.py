"""Diagnosis: the facts that an examination of nodes has collected, and the findings that follow from them."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from jdist.client.clocks import Clock
from jdist.core.messages.nodes import NetworkPath, NodeReport
from jdist.core.quantities import format_count
from jdist.core.ranks import RankSet

Severity = Literal["breaks", "may break", "note"]
SEVERITIES: tuple[Severity, ...] = ("breaks", "may break", "note")  # Worst first.


class Finding(Struct, frozen=True):
    """A plain sentence: a difference or a lack, and its effect."""

    severity: Severity
    text: str
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


class Examination(Struct, frozen=True):
    """The collected facts, by node; ``paths`` by ``(from, to)``."""

    nodes: Mapping[int, NodeReport]
    clocks: Mapping[int, Clock]
    paths: Mapping[tuple[int, int], NetworkPath]
    absent: Mapping[int, str]  # Nodes that could not be examined, and why.
    world_size: int = 0
    backend: str = ""
    trouble: str = ""  # Why the world could not be formed; "" if it was formed, or was not to be.

    def name(self, node: int) -> str:
        """The node as in "node 1 (b)"."""
        report = self.nodes.get(node)
        return f"node {node} ({report.hostname})" if report is not None else f"node {node}"


class Diagnosis(Struct, frozen=True):
    """The answer of ``doctor``: ``findings``, worst first, and the ``examination`` that they come from."""

    examination: Examination
    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether no finding breaks anything."""
        return all(f.severity != "breaks" for f in self.findings)

    def __str__(self) -> str:
        if self.findings:
            return "\n".join(map(str, self.findings))
        return f"nothing found: {format_count(len(self.examination.nodes), 'node')} examined"


def nodes_text(nodes: Iterable[int]) -> str:
    """The nodes as in "node 2", "nodes 0-3"."""
    found = RankSet(nodes)
    return f"node{'s' * (len(found) > 1)} {found}"
