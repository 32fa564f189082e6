"""A rank's environment is that of a process of torchrun's, and its children form a world of their own by it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from unittest import mock

import pytest
import torch.distributed as dist

from jdist.core.messages.membership import FormWorld
from jdist.core.topology import Topology
from jdist.worker.groups.environment import RankEnvironment

WORLD = FormWorld(3, (0, 1, 2), "gloo", "env://", "10.0.0.1", 29500, 3, (2, 1), 10.0, (), {}, None, ())
ELASTIC = ("RESTART_COUNT", "RUN_ID")


@pytest.fixture(autouse=True)
def environ() -> Iterator[None]:
    """What a test sets is gone afterwards, for child processes too."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
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
    assert [os.environ[f"TORCHELASTIC_{name}"] for name in ELASTIC] == ["2", "c1"]
    assert dist.is_torchelastic_launched()
    assert os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] == "2"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1", "the user's choice stays"


def test_children_find_a_port_that_is_reserved_for_them() -> None:
    """Whether they inherit the variables, copy them, or get them after they were saved and restored."""
    environment, store = formed(0), dist.HashStore()
    environment.publish_master_address(store, WORLD)
    environment.set_master_address(store)
    script = 'echo "$MASTER_ADDR $MASTER_PORT ${TORCHELASTIC_USE_AGENT_STORE-unset} $RANK"'

    def seen(env: dict[str, str] | None = None) -> list[str]:
        return subprocess.check_output(["sh", "-c", script], text=True, env=env).split()

    _, port, *_ = found = seen()
    assert found == ["10.0.0.1", os.environ["MASTER_PORT"], "unset", "0"]
    assert port != "29500"
    assert seen(dict(os.environ)) == found
    with mock.patch.dict(os.environ, MASTER_PORT="1"):
        assert seen()[1] == "1"
    assert seen() == found
    environment.publish_master_address(store, WORLD)
    environment.set_master_address(store)
    assert seen() == found, "it stays the same"
    environment.set(WORLD, Topology(WORLD.nproc_per_node), 0)
    assert seen() == found, "also while the world is not formed again"
    for _ in range(2):  # who listens there can do so again
        with socket.create_server(("", int(port))):
            pass
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
    store = dist.HashStore()
    environment.publish_master_address(store, WORLD)
    environment.set_master_address(store)
    reserved = int(os.environ["MASTER_PORT"])
    assert make(environment, reserved).get("key") == b"4"
    environment.set(WORLD, Topology(WORLD.nproc_per_node), 0)
    environment._store_host, environment._store_port = "127.0.0.1", server.port
    assert make(environment, reserved).get("key") == b"3", "code may have saved an earlier generation's port"
    environment.disconnect()
    assert not made
    if (pid := os.fork()) == 0:
        found = environment._make_store(original, "localhost", reserved, 0, 3, timedelta(10))
        os._exit(found != "torch's own")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a child makes its own"
    assert environment._make_store(original, "localhost", 29511, 0, 3, timedelta(10)) == "torch's own"
    environment.close()
