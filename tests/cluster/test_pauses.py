"""Pauses: a process that was stopped for longer than any grace takes its own pause for nobody's silence."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

import pytest

import jdist
from support import anatomy
from support.cells import ALL_REDUCE
from support.waits import eventually

Start = Callable[..., jdist.Cluster]

_PAUSE = 5.0
_GRACE = 2.5  # Less than the pause, more than a heartbeat.


def pause(pids: Iterable[int]) -> None:
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(_PAUSE)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


OF: dict[str, Callable[[jdist.Cluster], list[int]]] = {
    "the controller": lambda c: [anatomy.controller(c)],
    "everything": lambda c: [
        anatomy.controller(c),
        *(anatomy.agent(c, node) for node in (0, 1)),
        *(anatomy.worker(c, rank) for rank in (0, 1)),
        anatomy.store(c),
    ],
}


@pytest.mark.parametrize("of", OF)
def test_a_pause_costs_no_rank_its_names(fresh_cluster: Start, of: str) -> None:
    own = fresh_cluster(1, 2, node_grace=_GRACE, agent_grace=_GRACE)
    own.run("kept = rank + 1")
    told: list[str] = []
    own.asynchronous.watch(lambda m: told.append(getattr(m, "text", "")))
    pause(OF[of](own))
    assert eventually(lambda: own.facts.phase == "ready")
    assert own.run(ALL_REDUCE, timeout=30).values == {0: 2.0, 1: 2.0}
    assert own.run("kept", timeout=30).values == {0: 1, 1: 2}
    assert not [text for text in told if "lost" in text and "nothing was lost" not in text]
    assert [rank.fresh for rank in own.status().ranks] == [False, False]
