"""Doctor: a cluster's nodes are examined, while it runs."""

from __future__ import annotations

from collections.abc import Callable

from jdist.client.cluster.attachment import Attachment
from jdist.client.doctor.collect import examine
from jdist.client.doctor.diagnosis import Diagnosis


class Doctor(Attachment):
    """The examination of an attached cluster."""

    async def doctor(self, burst: float = 0.3, *, on_step: Callable[[str], None] | None = None) -> Diagnosis:
        """Examine every node and every way between two of them; no cell is disturbed but by the load.

        ``burst``: seconds for which bytes are sent on each way; 0 measures no bandwidth. ``on_step`` hears what is
        being done. ``str()`` of the answer gives the findings, worst first; a node that cannot be examined is one.
        """
        return await examine(self.link, self.facts, burst, on_step or (lambda _: None))
