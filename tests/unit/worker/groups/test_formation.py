"""Formation on one rank, before it meets the others: backend, device, environment and stores."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jdist.core.errors import LaunchError
from jdist.core.messages.membership import FormWorld
from jdist.worker.groups import formation
from jdist.worker.groups.formation import RankFormation


class Client:
    """Stands in for the store's client."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def get(self, host: str, port: int, _abandoned: Event) -> Any:
        self.asked.append((host, port))
        return dist.HashStore()


def form(rank: int = 0, gpu_index: int = 0, client: Any = None, **fields: Any) -> RankFormation:
    known: dict[str, Any] = {
        "generation": 3,
        "workers": (0, 1, 2),
        "backend": "gloo",
        "init_method": "env://",
        "store_host": "10.0.0.1",
        "store_port": 29500,
        "world_size": 3,
        "nproc_per_node": (2, 1),
        "timeout": 10.0,
        "replay": (),
        "named": {},
        "mesh": None,
        "cut": (),
    }
    return RankFormation(FormWorld(**{**known, **fields}), rank, gpu_index, client or Client(), Event())


def test_a_rank_knows_its_node_and_its_place_there() -> None:
    places = [(f.node_rank, f.local_rank) for f in map(form, range(3))]
    assert places == [(0, 0), (0, 1), (1, 0)]
    shared = form(1, nproc_per_node=(1, 1, 1), node_of=(0, 0, 1))  # two launcher tasks on one node
    assert (shared.node_rank, shared.local_rank) == (0, 1)


@pytest.mark.parametrize(
    ("gpus", "asked", "chosen"),
    [
        (0, "", ("gloo", torch.device("cpu"))),
        (1, "", ("gloo", torch.device("cpu"))),  # not one for each rank of the node
        (2, "", ("cpu:gloo,cuda:nccl", torch.device("cuda", 1))),
        (2, "gloo", ("gloo", torch.device("cpu"))),
        (2, "nccl", ("nccl", torch.device("cuda", 1))),
    ],
)
def test_the_backend_follows_the_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: int, asked: str, chosen: tuple[str, torch.device]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    made = form(1, gpu_index=1, backend=asked)
    assert (made.backend, made.device) == chosen


def test_a_backend_without_its_library_or_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(LaunchError, match=r"rank 2 \(node 1\).*built without nccl"):
        form(2, backend="nccl")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with pytest.raises(LaunchError, match=r"needs a GPU for each rank, and there are 1 for 2 ranks"):
        form(1, gpu_index=1, backend="nccl")


def test_a_generation_meets_under_its_own_prefix(tmp_path: Any) -> None:
    client = Client()
    meeting, later = form(client=client)._stores()
    assert meeting is later
    meeting.set("key", "value")
    assert client.asked == [("10.0.0.1", 29500)]
    assert meeting.underlying_store.get("gen3/key") == b"value"

    meeting, later = form(init_method=f"file://{tmp_path}/store?x=1")._stores()
    meeting.set("key", "value")
    assert meeting is not later, "a wait in a file's store cannot be ended, so later groups meet elsewhere"
    assert (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"init_method": "http://x"}, "--init-method takes env://"),
        ({"store_port": 0}, "rank 0 knows of no rendezvous store"),
    ],
)
def test_no_place_to_meet_is_an_error(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        form(**fields)._stores()


def test_jdists_own_groups_have_the_same_names_in_each_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, str]] = []

    def new_group(_ranks: Any, _timeout: Any, *_args: Any, group_desc: Any = None, **_: Any) -> None:
        made.append((formation.torch_compat.group_count(), group_desc))
        formation.torch_compat.set_group_count(formation.torch_compat.group_count() + 1)

    monkeypatch.setattr(dist, "new_group", new_group)
    count = formation.torch_compat.group_count()
    try:
        for before in (0, 5):
            formation.torch_compat.set_group_count(before)
            form(named={"tp": (0, 1)}).make_groups()
            assert formation.torch_compat.group_count() == before
    finally:
        formation.torch_compat.set_group_count(count)
    assert made[0] == made[1]
    assert made[0][0] >= 1_000_000
