"""Reforms: once the world has been formed again, the functions that cells gave for that are called on all ranks. Pure.

Where the calling itself is ended (by an interrupt, a death, or because it cannot finish), the world is formed once more
for that, and then nothing is called: it would not end.
"""

from __future__ import annotations

from jdist.controller.model.context import Context
from jdist.controller.model.runs import ON_REFORM, Run
from jdist.core.messages.status import Notice


class Reforms:
    """Queues their calling."""

    def __init__(self, context: Context):
        self._context = context

    def queue(self) -> None:
        """The world has been formed: have them called before anything else but setup cells."""
        c = self._context
        for run in [r for r in c.runs.queued if r.purpose == ON_REFORM]:
            c.runs.queued.remove(run)  # of a generation that is over
        was_ended, c.reform_ended = c.reform_ended, False
        if not any(r.wants_reform for r in c.world.ranks.values()):
            return
        if was_ended:
            text = (
                "the functions of jdist.on_reform were ended before they were done, and are not called again for that"
            )
            c.tell_all(Notice(f"{text}; call them in a cell"))
            return
        code = f"__import__('jdist.worker.groups.on_reform', fromlist=['x']).call({c.generation})"
        ranks = tuple(c.world.ranks)
        c.runs.add(Run(c.runs.new_number(), "", code, ranks, is_internal=True, purpose=ON_REFORM), first=True)
