"""torch's flight recorder of NCCL: another one than that of gloo, in builds of torch that have NCCL.

NCCL's collectives return once they are queued, and the GPU runs them later. So an entry is made when a rank has called,
and it is done when the GPU has finished, which each dump finds out by asking for the state of CUDA events. Its counters
are those of the last work, collectives or sends and receives alike, so that only entries tell how far a group is.
"""

import contextlib
from typing import Any

from msgspec import Struct

from jdist.worker.compat import torch as torch_compat


class NcclProgress(Struct):
    """How far a group is: the numbers of the last collectives that were queued, and that the GPU has finished."""

    begun: int = 0
    ended: int = 0


class NcclRecorder:
    """Reads it; the entries only where a counter has changed since, since that asks CUDA."""

    def __init__(self) -> None:
        self._status = b""
        self._names: dict[int, str] = {}  # torch's names of groups, by the numbers that they have here.
        self._progress: dict[int, NcclProgress] = {}  # An entry may be overwritten by those of other groups.
        self.entries: tuple[dict[str, Any], ...] = ()  # Collectives, oldest first.

    @property
    def status(self) -> bytes:
        """Opaque; another one as soon as a call was queued or was seen to have ended. Asks nothing of CUDA."""
        return torch_compat.nccl_flight_record(with_entries=False)

    def is_in_flight(self) -> bool:
        """Whether a call of the present generation is queued or on the GPU. Asks nothing of CUDA."""
        counters = torch_compat.read_flight_record(self.status).get("pg_status", {})
        formed = self._formed
        return any(
            c.get("last_enqueued_collective", -1) != c.get("last_completed_collective", -1)
            for number, c in counters.items()
            if int(number) >= formed
        )

    def read(self) -> None:
        """Bring entries and progress up to date."""
        status = self.status
        if status == self._status and all(_is_done(e) for e in self.entries[-1:]):
            return
        with contextlib.suppress(RuntimeError):  # the CUDA context is lost: it stays as it was last seen
            dump = torch_compat.read_flight_record(torch_compat.nccl_flight_record(with_entries=True))
            found = dump.get("entries", ())
            self._names.update({int(e["pg_id"]): str(e["process_group"][0]) for e in found})
            self.entries = tuple(e for e in found if not e["is_p2p"])
            for e in self.entries:
                progress = self._progress.setdefault(int(e["pg_id"]), NcclProgress())
                number = int(e["collective_seq_id"])
                progress.begun = max(progress.begun, number)
                if _is_done(e):
                    progress.ended = max(progress.ended, number)
            self._status = status

    def progress(self, name: str) -> NcclProgress | None:
        """How far the present group of this name is; None if it has called no collective of NCCL's."""
        newest = max((number for number, own in list(self._names.items()) if own == name), default=-1)
        return self._progress.get(newest) if newest >= self._formed else None

    def is_current(self, entry: dict[str, Any]) -> bool:
        """Whether an entry is of a group of the generation that is formed now."""
        return int(entry["pg_id"]) >= self._formed

    @property
    def _formed(self) -> int:
        """The number of the present world, before which those of its groups cannot be."""
        world = torch_compat.world_name()
        return max((number for number, name in list(self._names.items()) if name == world), default=0)


def _is_done(entry: dict[str, Any]) -> bool:
    return bool(entry["retired"]) or entry["state"] == "completed"
