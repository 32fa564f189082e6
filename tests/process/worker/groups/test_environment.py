"""A rank's environment is that of a process of torchrun's, and its children's is that of no rank."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from jdist.core.messages.groups import FormWorld
from jdist.core.topology import Topology
from jdist.worker.groups.environment import RankEnvironment

WORLD = FormWorld(3, (0, 1, 2), "gloo", "env://", "10.0.0.1", 29500, 3, (2, 1), 10.0, (), {}, None, ())
ELASTIC = ("RESTART_COUNT", "RUN_ID", "USE_AGENT_STORE")


@pytest.fixture(autouse=True)
def environ() -> Iterator[None]:
    """What a test sets is gone afterwards, for child processes too."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", *set(os.environ) - set(before)):
            os.unsetenv(name)
            os.environ.pop(name, None)
        os.environ.update(before)


def formed(rank: int, world: FormWorld = WORLD) -> RankEnvironment:
    environment = RankEnvironment("c1")
    environment.set(world, Topology(world.nproc_per_node), rank)
    return environment


def test_the_environment_is_torchruns() -> None:
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "1"
    formed(1)
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [os.environ[name] for name in names] == ["1", "1", "0", "1", "3", "2", "2"]
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert [os.environ[f"TORCHELASTIC_{name}"] for name in ELASTIC] == ["2", "c1", "True"]
    assert dist.is_torchelastic_launched()
    assert os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] == "2"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1", "the user's choice stays"


def test_children_find_a_port_that_is_kept_free_for_them() -> None:
    environment, store = formed(0), dist.HashStore()
    environment.publish_for_children(store, WORLD)
    environment.set_for_children(store)
    script = 'echo "$MASTER_ADDR $MASTER_PORT ${TORCHELASTIC_USE_AGENT_STORE-unset} $RANK"'
    host, port, agent_store, rank = subprocess.check_output(["sh", "-c", script], text=True).split()
    assert (host, agent_store, rank) == ("10.0.0.1", "unset", "0")
    assert port != os.environ["MASTER_PORT"] == "29500"
    environment.publish_for_children(store, WORLD)
    environment.set_for_children(store)
    assert subprocess.check_output(["sh", "-c", "echo $MASTER_PORT"], text=True).strip() == port, "it stays the same"
    for _ in range(2):  # who listens there can do so again
        with socket.create_server(("", int(port))):
            pass
    if (pid := os.fork()) == 0:
        environment._become_child()
        wrong = os.environ["MASTER_PORT"] != port or "TORCHELASTIC_USE_AGENT_STORE" in os.environ
        os._exit(wrong or environment.is_own_process)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    environment.close()


def test_a_second_rendezvous_meets_at_the_store_under_the_generations_prefix() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    made = []

    def original(*asked: object) -> str:
        made.append(asked)
        return "torch's own"

    def make(environment: RankEnvironment, port: int) -> dist.Store:
        found = environment._make_store(original, "localhost", port, 0, 3, timedelta(seconds=10))
        assert isinstance(found, dist.Store)
        return found

    for generation in (3, 4):
        environment = formed(
            0, FormWorld(generation, (0,), "gloo", "", "127.0.0.1", server.port, 3, (3,), 1.0, (), {}, None, ())
        )
        make(environment, server.port).set("key", str(generation))
    assert [server.get(f"gen{g}/env/key") for g in (3, 4)] == [b"3", b"4"]
    environment.disconnect()
    assert not made
    assert environment._make_store(original, "localhost", 29511, 0, 3, timedelta(10)) == "torch's own"
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    assert environment._make_store(original, "localhost", server.port, 0, 3, timedelta(10)) == "torch's own"
