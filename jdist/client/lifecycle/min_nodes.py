"""Fewer: a start that goes on without nodes that cannot be had, if its user said how few will do (``--min-nodes``).

Nobody is left out as long as somebody else may still come: so all that cannot be had are left out at once, and the
world is formed once.
"""

from __future__ import annotations

from jdist.client.link import Link, new_request
from jdist.core.errors import UsageError
from jdist.core.messages.membership import DropNodes
from jdist.core.settings import Settings


def check(settings: Settings) -> None:
    """Raises UsageError where more nodes are needed at the least than there are to be."""
    if not 0 <= settings.min_nodes <= settings.nnodes:
        raise UsageError(f"--min-nodes {settings.min_nodes} does not fit --nnodes {settings.nnodes}")


class Fewer:
    """What the launcher says of nodes that have ended, weighed against what the cluster can do without."""

    def __init__(self, link: Link, settings: Settings):
        self._link = link
        self._settings = settings
        self._left: set[int] = set()
        """Node ranks, as they were launched."""

    async def weigh(self, failures: dict[int, str]) -> dict[int, str]:
        """Those of the failures that end the start. Enough others being here, they are left out of the world."""
        facts = self._link.facts
        if self._left or not failures or (facts is not None and facts.generation):
            return {n: why for n, why in failures.items() if n not in self._left}
        if not self._settings.min_nodes or self._settings.nnodes - len(failures) < self._settings.min_nodes:
            return failures
        if self._missing() == failures.keys():
            await self._leave_out(failures)
        return {}

    async def give_up_waiting(self, failures: dict[int, str], seconds: float) -> bool:
        """Leave out all that have not come in time; False where that is not enough, or not what is waited for."""
        missing = self._missing()
        if self._left or not missing or not self._settings.min_nodes:
            return False
        late = f"it did not come within {seconds:.0f} s"
        return await self._leave_out({n: failures.get(n, late) for n in missing})

    def _missing(self) -> set[int]:
        facts = self._link.facts
        return set() if facts is None else {n for n, host in enumerate(facts.hostnames) if not host}

    async def _leave_out(self, nodes: dict[int, str]) -> bool:
        try:
            await self._link.request(DropNodes(new_request(), nodes))
        except UsageError:
            return False  # somebody has come or gone meanwhile, or too few are here
        self._left = set(nodes)
        return True
