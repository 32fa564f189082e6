"""Earlier: clusters that an earlier kernel of this notebook has left, which a start would only add to.

A kernel's end leaves its cluster running, so that the next kernel can attach to it. A notebook that is restarted and
run from the top starts another one, with the same options, and nothing would use the first. So a start stops it if it
is idle and no other program uses it; otherwise it is left, or the user is asked.
"""

import os
import re

from msgspec.structs import replace

from jdist.client import find
from jdist.client.attachment import Attachment
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.origin import this_notebook
from jdist.client.lifecycle.start import EarlierNotice, OnProgress, complete
from jdist.client.link import new_request
from jdist.core.errors import JdistError
from jdist.core.messages.status import Origin, StatusReport, StatusRequest
from jdist.core.ranks import RankSet
from jdist.core.remedy import Remedy
from jdist.core.settings import Settings
from jdist.wire.processes import has_ended

KEEP = "JDIST_KEEP"  # The environment's variable for those who want such clusters to be kept.
_KIND = "start"
_CHOSEN_BY_JDIST = re.compile(r"c[0-9]+")


class EarlierCluster:
    """A cluster that an earlier kernel of this notebook has left, attached to."""

    def __init__(self, name: str, origin: Origin, lifecycle: ClusterLifecycle, report: StatusReport):
        self.name = name
        self._origin = origin
        self._lifecycle = lifecycle
        self._report = report

    @property
    def use(self) -> str:
        """What speaks against its end, in words; "" if it is idle and no other program uses it."""
        runs = [
            f"run {number} is {state} on rank{'s' * (len(ranks) != 1)} {RankSet(ranks)}"
            for number, state, ranks, _ in self._report.runs
        ]
        others = len(self._report.clients) - 1
        attached = [f"{others} other client{'s are' if others > 1 else ' is'} attached"] if others > 0 else []
        shared = ["another program has used it"] if self._origin.is_shared and not attached else []
        return " and ".join(runs[:1] + attached + shared)

    async def end(self) -> EarlierNotice:
        """Stop it, so that its ranks end as a kernel does; says so."""
        await self._lifecycle.stop()
        was = "has been" if self.use else "was idle and has been"
        text = f"cluster {self.name} of an earlier kernel of this notebook {was} stopped"
        return EarlierNotice(text, remedies=(Remedy("start", "keep such a cluster", name="--keep"),))

    async def leave(self) -> EarlierNotice:
        """Leave it running; says how to use it or end it. May be called again."""
        await self._lifecycle.detach()
        return _left(self.name, f"runs on: {self.use}")


async def find_earlier(settings: Settings, *, is_named: bool) -> tuple[list[EarlierCluster], list[EarlierNotice]]:
    """Clusters that an earlier kernel started with these settings, and notices of others that it left.

    ``is_named``: the name is one of the options; else jdist has chosen it, and any such name will do.
    """
    own = this_notebook()
    found: list[EarlierCluster] = []
    notices: list[EarlierNotice] = []
    for name, connection in find.here().items() if own is not None else ():
        charter = find.charter_of(connection)
        origin = None if charter is None else charter.origin
        if own is None or charter is None or origin is None or not own.is_of_same_notebook(origin):
            continue
        if origin.pid == own.pid or not has_ended(origin.pid, origin.started):
            continue
        if not is_same_start(settings, charter.settings, is_named=is_named):
            notices.append(_left(name, "runs on: it was started with other options"))
            continue
        attachment = Attachment()
        lifecycle = ClusterLifecycle(attachment)
        try:
            await lifecycle.attach(name, _KIND)
            report = await attachment.link.request(StatusRequest(new_request()), StatusReport)
        except JdistError as e:
            await lifecycle.detach()
            notices.append(_left(name, f"could not be asked what it does: {e.message}"))
        else:
            found.append(EarlierCluster(name, origin, lifecycle, report))
    return found, notices


def is_same_start(new: Settings, old: Settings, *, is_named: bool) -> bool:
    """Whether both settings are of starts with the same options. Raises UsageError, LaunchError."""
    is_same_name = new.name == old.name if is_named else _CHOSEN_BY_JDIST.fullmatch(old.name) is not None
    return is_same_name and replace(complete(new), name=old.name) == old


def _left(name: str, why: str) -> EarlierNotice:
    remedies = (Remedy("attach", "use it", name=name), Remedy("stop", "end it", name=name))
    return EarlierNotice(f"cluster {name} of an earlier kernel of this notebook {why}", remedies=remedies)


def keeps(keep: bool | None) -> bool:
    """Whether clusters of an earlier kernel are left alone: as the user says, else as the environment does."""
    return os.environ.get(KEEP, "").lower() not in ("", "0", "false", "no") if keep is None else keep


async def end_earlier(settings: Settings, on_progress: OnProgress, *, is_named: bool, keep: bool | None) -> None:
    """Stop what an earlier kernel has left unused, before a start; say so, and what is left running."""
    if keeps(keep):
        return
    found, notices = await find_earlier(settings, is_named=is_named)
    for notice in notices:
        on_progress(notice)
    try:
        for earlier in found:
            on_progress(await (earlier.leave() if earlier.use else earlier.end()))
    finally:
        for earlier in found:
            await earlier.leave()
