"""Phases: the named states of the cluster, of each rank and of each run, and the only ways between them. Pure.

docs/design/states.md has the diagrams. What has a phase changes it by :func:`transition` alone, which remembers the
last changes with their reasons: an InvalidTransition quotes them, and each is logged at debug level.
"""

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from jdist.core.messages.status import Phase

_log = logging.getLogger("jdist.controller")

_REMEMBERED = 12  # Transitions of one run, rank or cluster that its story holds.

RankPhase = Literal["starting", "up", "held", "gone"]
RunPhase = Literal["queued", "running", "diagnosing", "aborting", "comparing", "ended"]
SavesPhase = Literal["off", "waiting", "due", "asking", "placed", "copying", "writing"]

CLUSTER: dict[Phase, tuple[Phase, ...]] = {
    "gathering": ("forming", "ready", "failed", "stopping"),
    "forming": ("ready", "gathering", "failed", "stopping"),
    "ready": ("forming", "gathering", "failed", "stopping"),
    "failed": ("gathering", "stopping"),
    "stopping": (),
}
RANK: dict[RankPhase, tuple[RankPhase, ...]] = {
    "starting": ("up", "gone"),
    "up": ("held", "gone"),
    "held": ("gone",),
    "gone": ("starting", "up", "held"),
}
RUN: dict[RunPhase, tuple[RunPhase, ...]] = {
    "queued": ("running", "ended"),
    "running": ("queued", "diagnosing", "aborting", "comparing", "ended"),
    "diagnosing": ("aborting", "ended"),
    "aborting": ("comparing", "ended"),
    "comparing": ("ended",),
    "ended": (),
}
SAVES: dict[SavesPhase, tuple[SavesPhase, ...]] = {
    "off": ("waiting",),
    "waiting": ("due", "off"),
    "due": ("asking", "copying", "off"),
    "asking": ("placed", "due"),
    "placed": ("writing", "waiting", "due", "off"),
    "copying": ("writing", "waiting", "off"),
    "writing": ("waiting", "off"),
}

P = TypeVar("P", bound=str)


class InvalidTransition(AssertionError):
    """A fault of jdist: something was to change to a phase that cannot follow its present one."""


@dataclass
class Lifecycle(Generic[P]):
    """The phase of one thing, the transitions that it may make, and the last ones that it has made."""

    name: str
    phase: P
    allowed: dict[P, tuple[P, ...]]
    last: deque[tuple[P, str]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def story(self) -> str:
        """The last transitions, such as "run 3: running, aborting (timeout)"."""
        return f"{self.name}: " + ", ".join(f"{phase} ({why})" for phase, why in self.last)


class HasPhase(Generic[P]):
    """Base of what has a phase."""

    lifecycle: Lifecycle[P]

    @property
    def phase(self) -> P:
        return self.lifecycle.phase


def transition(thing: HasPhase[P], to: P, why: str) -> None:
    """Change the phase, or raise InvalidTransition. A thing that is in the phase already stays there."""
    life = thing.lifecycle
    if to == life.phase:
        return
    if to not in life.allowed[life.phase]:
        raise InvalidTransition(f"{life.name} cannot go from {life.phase} to {to} ({why}); {life.story}")
    _log.debug("%s: %s -> %s (%s)", life.name, life.phase, to, why)
    life.phase = to
    life.last.append((to, why))
