"""Folding: the controller's state hears well-formed nonsense from its own agents and clients, and must not raise."""

from __future__ import annotations

import functools
import operator
import random
import sys

from jdist.controller.model.model import FromAgent, FromClient, PeerGone, Tick
from jdist.core.messages.membership import Owner
from jdist.core.messages.protocol import AgentMessage, ClientMessage
from jdist.core.messages.status import StopCluster
from support.driver import VERSION, Driver
from support.fuzz.making import Maker

STEPS = 400
"""In one world, before another is made."""


def fold(source: random.Random, worlds: int) -> int:
    """How many messages were taken. Raises what the state raises, with the story that led there."""
    taken = 0
    maker = Maker(source, VERSION)
    said = functools.reduce(operator.or_, (kind for kind in ClientMessage.__args__ if kind is not StopCluster))
    for _ in range(worlds):
        d = Driver(2, on_death=source.choice(("replace", "wait")))
        d.ready()
        if source.random() < 0.2:
            d.state.take_over({"a-0": Owner((0, 1)), "a-1": Owner((2, 3), is_carried=True)})
        story: list[object] = []
        for _ in range(STEPS):
            match source.randrange(8):
                case 0:
                    event: object = Tick()
                    d.now += source.choice((0.01, 1.0, 4.0))
                case 1 if source.random() < 0.1 and d.state.model.liveness_names:
                    event = PeerGone(source.choice(sorted(d.state.model.liveness_names)), source.random() < 0.5)
                case 1 | 2 | 3 | 4:
                    event = FromAgent(source.choice(("a-0", "a-1", "a-1", "a-7")), maker.message(AgentMessage))
                case _:
                    event = FromClient(source.choice(("c-1", "c-1", "c-2")), maker.message(said))
            story.append(event)
            taken += 1
            try:
                d.state.step(event, d.now)  # type: ignore[arg-type]
                d.state.next_wakeup()
            except Exception as e:
                told = "\n".join(f"  {e!r:.300}" for e in story[-3:])
                raise AssertionError(f"the state could not take the last of\n{told}") from e
            if d.state.model.phase == "stopping":
                break
    return taken


if __name__ == "__main__":
    seed = int(sys.argv[1])
    print(fold(random.Random(seed), int(sys.argv[2])))
