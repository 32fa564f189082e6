"""RPC is ended while a cell starts its agent or shuts it down: with an agent that shows how its functions overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed.rpc import api

from jdist.worker.compat import rpc as rpc_compat
from jdist.worker.groups import rpc as rpc_module
from jdist.worker.groups.rpc import RpcAgent

if not rpc_compat.has_rpc():
    pytest.skip("this build of torch has no RPC", allow_module_level=True)

DEADLINE = 20.0
AT_ONCE = 0.5  # Seconds in which a thread would enter a function if nothing held it up.


class Agent:
    """Stands for torch's: each of its functions lasts until ``go`` is set."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.calls: list[str] = []
        self.inside = self.most_inside = 0

    def join(self) -> None:
        self._run("join")

    def shutdown(self) -> None:
        self._run("shutdown")

    def start(self) -> None:
        self._run("start")

    def _run(self, name: str) -> None:
        self.calls.append(name)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.release()
        self.go.wait(DEADLINE)
        self.inside -= 1


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    for name in ("join", "shutdown"):
        monkeypatch.setattr(Agent, name, getattr(Agent, name))  # put back at the end, as all below
    agent = Agent()
    monkeypatch.setattr(torch._C._distributed_rpc, "TensorPipeAgent", Agent)
    monkeypatch.setattr(rpc_compat, "_methods", {})
    monkeypatch.setattr(api, "_is_current_rpc_agent_set", lambda: True)
    monkeypatch.setattr(api, "_get_current_rpc_agent", lambda: agent)
    monkeypatch.setattr(api, "_set_and_start_rpc_agent", Agent.start)
    monkeypatch.setattr(api, "_delete_all_user_and_unforked_owner_rrefs", None)
    yield agent
    agent.go.set()
    for thread in threading.enumerate():
        if thread.name == "jdist-rpc":
            thread.join(DEADLINE)


@pytest.fixture
def rpc(agent: Agent) -> RpcAgent:
    rpc = RpcAgent()
    rpc.install()
    return rpc


def start(agent: Agent) -> None:
    api._set_and_start_rpc_agent(agent)


def shut_down(agent: Agent) -> None:
    agent.shutdown()


@pytest.mark.parametrize("function", [start, shut_down])
def test_an_agent_is_not_shut_down_while_it_is_started_or_shut_down(
    agent: Agent, rpc: RpcAgent, function: Callable[[Agent], None]
) -> None:
    cell = threading.Thread(target=function, args=(agent,))
    cell.start()
    assert agent.entered.acquire(timeout=DEADLINE)
    rpc.end()
    assert not agent.entered.acquire(timeout=AT_ONCE)
    agent.go.set()
    assert agent.entered.acquire(timeout=DEADLINE), "it is shut down then"
    cell.join(DEADLINE)
    assert agent.calls[-1] == "shutdown"
    assert agent.most_inside == 1


def test_the_next_agent_does_not_wait_for_one_that_is_stuck(agent: Agent, rpc: RpcAgent) -> None:
    rpc.end()
    assert agent.entered.acquire(timeout=DEADLINE)
    following = Agent()
    following.go.set()
    start(following)
    assert following.calls == ["start"]
    assert agent.inside == 1


class ThreadingThatEndsRpc:
    """The threading module; RPC is ended when the first event is made."""

    def __init__(self, rpc: RpcAgent) -> None:
        self._rpc: RpcAgent | None = rpc

    def __getattr__(self, name: str) -> Any:
        if name == "Event" and self._rpc is not None:
            rpc, self._rpc = self._rpc, None
            rpc.end()
        return getattr(threading, name)


def test_the_main_thread_does_not_wait_where_rpc_is_ended_just_before_it_would(
    agent: Agent, rpc: RpcAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_module, "threading", ThreadingThatEndsRpc(rpc))
    agent.shutdown()
    assert not agent.go.is_set()
    assert agent.entered.acquire(timeout=DEADLINE)
    assert agent.calls == ["shutdown"], "by the end of RPC, and not by the main thread"
