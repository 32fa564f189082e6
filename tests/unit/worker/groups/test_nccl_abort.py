"""NCCL's communicators are aborted, and the next generation waits for that."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from jdist.core.errors import LaunchError
from jdist.worker.compat import torch as compat
from jdist.worker.groups.gloo import own_listeners
from jdist.worker.groups.registry import GroupRegistry


class Nccl:
    """Stands in for torch's abort, which returns when it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.has_groups = True
        self.begun = 0
        self.may_end = threading.Event()
        self.destroyed = 0
        self.fails = False
        patch.setattr(compat, "has_nccl", lambda: self.has_groups)
        patch.setattr(compat, "abort_nccl", self._abort)
        patch.setattr(compat, "forget_groups", lambda: None)
        patch.setattr(dist, "is_initialized", lambda: True)
        patch.setattr(dist, "destroy_process_group", self._destroy)

    def _abort(self) -> None:
        self.begun += 1
        self.may_end.wait(30)
        self.has_groups = False
        if self.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def _destroy(self) -> None:
        self.destroyed += 1


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nccl]:
    made = Nccl(monkeypatch)
    yield made
    made.may_end.set()


def test_a_generation_is_left_once_its_abort_has_ended(nccl: Nccl) -> None:
    registry = GroupRegistry({})
    registry.abort_nccl()
    registry.abort_nccl()
    with pytest.raises(LaunchError, match=r"has not ended its communicators within 0\.01 s; restart this rank"):
        registry._leave((), 0.01)
    nccl.may_end.set()
    registry._leave((), 30.0)
    assert (nccl.begun, nccl.destroyed) == (1, 0)
    registry._leave((), 30.0)
    assert (nccl.begun, nccl.destroyed) == (1, 1), "a generation without NCCL is destroyed"


def test_cuda_graphs_are_reset_when_the_abort_waits_for_them(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def reset(self) -> None:
            nccl.may_end.set()

    held = Graph()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    registry = GroupRegistry({})
    registry._leave((), 30.0)
    assert (nccl.begun, registry._graphs_reset) == (1, 1), held


def test_an_end_of_listening_wakes_who_waits_there(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL waits for the other members of a communicator, in C++ code and at sockets of its own."""
    registry, is_in_call = GroupRegistry({}), False
    monkeypatch.setattr(registry.log, "open", lambda _thread: object() if is_in_call else None)
    make = lambda: socket.create_server(("127.0.0.1", 0))  # noqa: E731
    with make() as others:
        registry._own_listeners = own_listeners()
        with make() as nccls, make() as gloos:
            nccls.settimeout(10)
            registry._own_listeners.add(gloos.getsockname())
            registry.abort_nccl_creation()
            assert is_listening(nccls), "there is no NCCL"
            registry.abort_nccl()
            registry.abort_nccl_creation()
            assert is_listening(nccls), "no communicator is being made"
            is_in_call = True
            registry.abort_nccl_creation()
            with pytest.raises(OSError, match="Invalid argument"):
                nccls.accept()
            assert is_listening(gloos)
        assert is_listening(others)


def is_listening(sock: socket.socket) -> bool:
    with socket.create_connection(sock.getsockname(), 10):
        sock.accept()[0].close()
    return True


@pytest.mark.parametrize("fails", [False, True])
def test_nccl_is_aborted_rather_than_destroyed_as_a_rank_may_be_gone(nccl: Nccl, fails: bool) -> None:
    nccl.fails = fails
    nccl.may_end.set()
    GroupRegistry({})._leave((), 30.0)
    assert (nccl.begun, nccl.destroyed) == (1, 0)
