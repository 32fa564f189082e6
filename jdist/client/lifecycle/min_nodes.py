"""Min nodes: a start that goes on without nodes that cannot be had, as its ``--min-nodes`` permits.

No node is dropped as long as another one may still join. So all that cannot be had are dropped at once, and the world
is formed once.
"""

from jdist.client.link import Link, new_request
from jdist.core.errors import UsageError
from jdist.core.messages.membership import DropNodes
from jdist.core.settings import Settings


class StartQuorum:
    """Weighs the nodes that a launcher reports as ended against the number that the cluster needs."""

    def __init__(self, link: Link, settings: Settings):
        self._link = link
        self._settings = settings
        self._dropped: set[int] = set()  # Node ranks, as they were launched.

    async def weigh(self, failures: dict[int, str]) -> dict[int, str]:
        """The failures that end the start. If enough other nodes are attached, drop the failed ones instead."""
        facts = self._link.facts
        if self._dropped or not failures or (facts is not None and facts.generation):
            return {n: why for n, why in failures.items() if n not in self._dropped}
        if not self._settings.min_nodes or self._settings.nnodes - len(failures) < self._settings.min_nodes:
            return failures
        if self._missing() == failures.keys():
            await self._drop(failures)
        return {}

    async def drop_missing(self, failures: dict[int, str], seconds: float) -> bool:
        """Drop every node that has not joined within ``seconds``. False if too few would remain or none is missing."""
        missing = self._missing()
        if self._dropped or not missing or not self._settings.min_nodes:
            return False
        late = f"it did not come within {seconds:.0f} s"
        return await self._drop({n: failures.get(n, late) for n in missing})

    def _missing(self) -> set[int]:
        facts = self._link.facts
        return set() if facts is None else {n for n, host in enumerate(facts.hostnames) if not host}

    async def _drop(self, nodes: dict[int, str]) -> bool:
        try:
            await self._link.request(DropNodes(new_request(), nodes), object)
        except UsageError:
            return False  # a node has joined or left in the meantime, or too few are attached
        self._dropped = set(nodes)
        return True
