"""Steps of a rank poll: a rank reports that it stalls, and ranks answer the poll that follows."""

from __future__ import annotations

from jdist.controller.model.model import FromAgent
from jdist.core.messages.observation import Observation, Stalled
from jdist.core.messages.protocol import RankQuery, RankReply
from support.driver import Driver


def stall(d: Driver, rank: int, run: int) -> None:
    d.step(FromAgent(d.agent_of(rank).name, Stalled(rank, run)))
    d.sleep(0.0)


def answer(d: Driver, **looks: Observation) -> None:
    """The ranks r0=..., r1=... answer the latest look; the agents may be slow, so time does not pass."""
    request = d.heard(RankQuery)[-1].request
    for name, body in looks.items():
        rank = int(name[1:])
        d.step(FromAgent(d.agent_of(rank).name, RankReply(request, rank, body)))
