"""Report: what a drill found for each fault, and as JSON to attach to a bug report."""

import datetime as dt
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from jdist.core import __version__
from jdist.core.errors import UsageError

FORMAT = 1

Result = Literal["held", "failed", "not tried"]


class Trial(Struct, frozen=True):
    """One fault. Times are in seconds; None where they do not apply, or were not reached."""

    fault: str
    result: Result
    reason: str = ""  # What did not hold, or why it was not tried.
    note: str = ""  # What the user should know although all held.
    said: str = ""  # The verdict or error, as a user reads it.
    verdict_seconds: float | None = None  # From the fault until jdist named it.
    free_seconds: float | None = None  # From the interrupt (or the verdict) until every rank was free.
    sum_seconds: float | None = None  # From then on until a right all_reduce over the whole world.
    kept: int = 0  # Ranks that have their names, of
    expected: int = 0  # those that should have them.


class Drill(Struct, frozen=True):
    """The trials with one backend, on the cluster that was started for them."""

    backend: str  # As the cluster says; as it was asked for, if it could not be started.
    launcher: str
    world_size: int = 0
    hosts: tuple[str, ...] = ()  # Of each node.
    start_seconds: float = 0.0
    trials: tuple[Trial, ...] = ()
    trouble: str = ""  # Why there was no cluster.
    torch: tuple[str, ...] = ()  # The versions on its ranks.

    @property
    def held(self) -> bool:
        """Whether nothing failed, and something was tried."""
        results = {trial.result for trial in self.trials}
        return not self.trouble and "failed" not in results and "held" in results


def write_json(path: Path, drills: Sequence[Drill]) -> None:
    """Write the drills with the versions of what they ran on. Raises UsageError."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "versions": {"jdist": __version__, "python": platform.python_version(), "system": platform.platform()},
        "held": bool(drills) and all(drill.held for drill in drills),
        "drills": [msgspec.to_builtins(drill) | {"held": drill.held} for drill in drills],
    }
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    except OSError as e:
        raise UsageError(f"the report cannot be written to {path}: {e.strerror}") from e
