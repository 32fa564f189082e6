"""Runs, pauses, interrupts and losses in any order: the driver's invariants hold, and all comes to an end."""

from __future__ import annotations

import random

import pytest

from jdist.controller.model.model import PeerGone
from jdist.core.messages.debug import FollowRun, Pause, Resume
from jdist.core.messages.runs import Interrupt, RunEnded
from jdist.core.messages.status import ClusterFacts, StatusRequest
from support.driver import Agent, Driver

STEPS = 150


def act(d: Driver, source: random.Random) -> None:
    """One client, rank or agent does something."""
    ranks = tuple(sorted(source.sample(range(4), source.randint(1, 4))))
    runs = [*d.state.model.runs.running, *(run.number for run in d.state.model.runs.queued), 0]
    agent = source.choice([a for a in d.agents.values() if not a.is_gone])
    match source.randrange(16):
        case 0 | 1 | 2:
            d.run(ranks, source.choice((None, None, 3.0)))
        case 3:
            d.say(Pause("p", source.choice((ranks, ())), source.choice(runs)))
        case 4 | 5:
            d.say(Resume("c", source.choice(("continue", "step", "next_call")), source.choice((ranks, ()))))
        case 6 if source.random() < 0.3:
            d.say(Interrupt("i", source.choice((ranks, ())), source.choice(runs)))
        case 7:
            d.say(FollowRun("f", source.choice(runs)), source.choice(("c-1", "c-2")))
        case 8:
            d.now += source.choice((0.1, 1.0))
        case 9 if source.random() < 0.1:
            agent.kill(source.choice(sorted(agent.incarnations)))
        case 10 if source.random() < 0.2 and "c-2" in d.state.model.clients:
            d.step(PeerGone(next(n for n, p in d.state.model.liveness_names.items() if p == "c-2")))
            d.attach("c-2")
        case 11:
            pause_by_itself(agent, source)
        case 12 | 13:
            busy = [w for w in agent.cells if w in agent.inner or w not in agent.paused]
            if busy:
                agent.finish(source.choice(busy), source.choice(("value", "value", "error")))
        case _ if agent.says:
            d.deliver(agent)


def pause_by_itself(agent: Agent, source: random.Random) -> None:
    going_on = [w for w in agent.cells if w not in agent.paused]
    if going_on:
        agent.pause(source.choice(going_on), source.choice(("breakpoint", "step")))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_all_comes_to_an_end(seed: int) -> None:
    source = random.Random(seed)
    d = Driver(interrupt_grace=1.0).ready()
    d.attach("c-2")
    for _ in range(STEPS):
        act(d, source)
        d.say(StatusRequest("s"))
    d.settle()
    d.say(Interrupt("i"))
    d.sleep(5.0)
    assert not d.state.model.runs.running
    assert not d.state.model.runs.queued
    assert all(log.ended for log in d.runs.values() if log.ranks)
    assert d.told(ClusterFacts)[-1].paused == ()
    last = d.run()
    for rank in range(4):
        d.finish(rank)
    assert d.told(RunEnded)[-1].run == last
