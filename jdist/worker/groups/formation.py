"""Formation: the steps by which one rank joins a generation of the world, each a call into torch.distributed.

Worker/groups says when; here is how: choose a backend, meet at the store, make the default group and what is made from
it, and check that a collective comes out right.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from msgspec import Struct

from jdist.core.errors import LaunchError
from jdist.core.messages.groups import GroupSpec
from jdist.worker.gloo.connections import Endpoint, cut, own_listeners
from jdist.worker.gloo.wake_listeners import Knocker
from jdist.worker.groups.patches import FOREVER
from jdist.worker.groups.store_client import StoreClient, meet

WORLD = "the world"
"""Key of the default group among a generation's groups."""
_NAMED_NUMBERS = 1_000_000
"""torch names groups by a running number; jdist's own take theirs from here on, far from the cells' groups."""
_AGAIN = 0.05
"""Seconds until what forms, and was to end, is looked at again."""
_SLACK = 0.5
"""Seconds that the watchdog leaves to the waits which end by themselves at the deadline."""


class FormSpec(Struct, frozen=True):
    """A generation to be formed, as this rank sees it."""

    generation: int
    backend: str | None
    init_method: str
    """``env://``, ``tcp://…`` (both: the store at ``store_host:store_port``) or ``file://PATH``."""
    store_host: str
    store_port: int
    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    local_world_size: int
    nnodes: int
    gpu_index: int
    """The GPU that is this process's own on its node: its first local rank, also after others were removed."""
    timeout: float
    """Seconds for forming."""
    replay: tuple[GroupSpec, ...] = ()
    """Groups that cells have made, in order, the same on all ranks."""
    named: dict[str, tuple[int, ...]] = {}
    mesh: tuple[tuple[str, ...], tuple[int, ...]] | None = None
    cut: tuple[Endpoint, ...] = ()
    """Every rank's listeners of the generation that is left."""


class FormReport(Struct, frozen=True):
    """What forming came to."""

    generation: int
    listeners: tuple[Endpoint, ...]
    """Where this rank's groups accept connections."""
    device: str
    seconds: float
    notices: tuple[str, ...] = ()
    """What on this rank could not be carried over from the last generation."""


def choose(spec: FormSpec) -> tuple[str, Any]:
    """Backend and device. Raises LaunchError for a backend that this torch or this machine cannot do."""
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.device_count()
    backend = spec.backend or ("cpu:gloo,cuda:nccl" if gpus >= spec.local_world_size else "gloo")
    here = f"rank {spec.rank} (node {spec.node_rank})"
    for name, is_there in {
        "nccl": dist.is_nccl_available,
        "mpi": dist.is_mpi_available,
        "gloo": dist.is_gloo_available,
    }.items():
        if name in backend and not is_there():
            raise LaunchError(
                f"{here}: backend {backend!r} was asked for, but torch {torch.__version__} there was built without "
                f"{name}; start with --backend gloo, or install a torch that has {name}"
            )
    if "nccl" not in backend:
        return backend, torch.device("cpu")
    if spec.gpu_index >= gpus:
        raise LaunchError(
            f"{here}: backend {backend!r} needs a GPU for each rank, and there are {gpus} for "
            f"{spec.local_world_size} ranks on this node; start fewer ranks, or use --backend gloo"
        )
    return backend, torch.device("cuda", spec.gpu_index)


def set_environment(spec: FormSpec) -> None:
    """Torchrun's variables, OpenMPI's, and NCCL's manners."""
    values = {
        "RANK": spec.rank,
        "LOCAL_RANK": spec.local_rank,
        "GROUP_RANK": spec.node_rank,
        "WORLD_SIZE": spec.world_size,
        "LOCAL_WORLD_SIZE": spec.local_world_size,
        "GROUP_WORLD_SIZE": spec.nnodes,
        "MASTER_ADDR": spec.store_host,
        "MASTER_PORT": spec.store_port,
        "OMPI_COMM_WORLD_RANK": spec.rank,
        "OMPI_COMM_WORLD_SIZE": spec.world_size,
        "OMPI_COMM_WORLD_LOCAL_RANK": spec.local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": spec.local_world_size,
    }
    os.environ.update({name: str(value) for name, value in values.items()})
    # NCCL's watchdog would end the process at an error or a long wait; jdist aborts the communicators itself.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")


@contextlib.contextmanager
def watchdog(client: StoreClient, world_size: int, deadline: float, abandoned: threading.Event) -> Iterator[None]:
    """End what forms when the deadline passes or it is abandoned: torch would wait a day for a rank that died.

    A rank that never came is noticed earlier, and named, by the meeting at the store. What forms may be between two
    waits at any moment, so it is ended again and again.
    """
    before = own_listeners()
    is_over = threading.Event()

    def watch() -> None:
        abandoned.wait(max(0.0, deadline - time.monotonic()) + _SLACK)
        knocker = Knocker()
        while not is_over.is_set():
            client.cut()
            listeners = own_listeners() - before
            knocker.knock(listeners, world_size)
            cut(listeners)
            is_over.wait(_AGAIN)

    thread = threading.Thread(target=watch, name="jdist-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        abandoned.set()
        thread.join(_SLACK)


def init_world(spec: FormSpec, backend: str, device: Any, client: StoreClient, deadline: float) -> None:
    """Meet the other ranks and make the default group; ``deadline`` is absolute (time.monotonic)."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if device.type == "cuda":
        torch.cuda.set_device(device)
    excepthook = sys.excepthook
    if backend == "mpi":
        dist.init_process_group("mpi")
        if (dist.get_rank(), dist.get_world_size()) != (spec.rank, spec.world_size):
            raise LaunchError(
                f"mpirun numbers this process {dist.get_rank()} of {dist.get_world_size()}, jdist {spec.rank} of "
                f"{spec.world_size}; have mpirun start one `jdist join` for each rank, or use --backend gloo"
            )
    else:
        store, later = _stores(spec, client)
        meet(store, spec.rank, spec.world_size, deadline - time.monotonic())
        dist.init_process_group(
            backend,
            store=store,
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=FOREVER,
            device_id=device if backend == "nccl" else None,
        )
        world: Any = dist.group.WORLD
        c10d._world.pg_map[world] = (c10d._world.pg_map[world][0], later)
    sys.excepthook = excepthook  # torch wraps it at each init, a hundred times for a hundred generations


def _stores(spec: FormSpec, client: StoreClient) -> tuple[Any, Any]:
    """The store where the world meets, and the one for groups made later, in which a wait can be cut."""
    import torch.distributed as dist

    if not spec.init_method.startswith(("env://", "tcp://", "file://")):
        raise LaunchError(f"--init-method takes env://, tcp://HOST:PORT or file://PATH, not {spec.init_method!r}")
    prefix = f"gen{spec.generation}"
    lasting = None
    if spec.store_port:
        lasting = dist.PrefixStore(prefix, client.get(spec.store_host, spec.store_port))
    if not spec.init_method.startswith("file://"):
        if lasting is None:
            raise LaunchError(f"rank {spec.rank} was told of no rendezvous store for {spec.init_method}")
        return lasting, lasting
    path = spec.init_method.removeprefix("file://").partition("?")[0]
    # The file may be left from another cluster; its store tells the clusters apart.
    shared = dist.PrefixStore(f"{prefix}-{spec.store_host}-{spec.store_port}", dist.FileStore(path, spec.world_size))
    return shared, lasting or shared


def make_groups(spec: FormSpec, device: Any) -> dict[object, Any]:
    """Everything that is made from the world: the cells' groups, the named ones, the mesh's dimensions."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    groups: dict[object, Any] = {WORLD: dist.group.WORLD}
    for index, asked in enumerate(spec.replay):
        if asked.is_gone:
            c10d._world.group_count += 1  # torch's name of it: those behind it keep theirs
            continue
        if asked.splits:
            groups[index] = c10d.split_group(
                split_ranks=[list(s) for s in asked.splits], timeout=FOREVER, group_desc=asked.name or None
            )
            continue
        groups[index] = dist.new_group(
            list(asked.ranks), FOREVER, asked.backend, group_desc=asked.name or None, sort_ranks=False
        )
    for name, ranks in spec.named.items():
        with _numbered(f"{name}:{ranks}"):
            groups[f"group {name!r}"] = dist.new_group(list(ranks), FOREVER, group_desc=name)
    if spec.mesh is not None:
        names, sizes = spec.mesh
        with _numbered(f"mesh:{names}:{sizes}"):
            mesh = dist.init_device_mesh(device.type, sizes, mesh_dim_names=names)
        groups["mesh"] = mesh
        groups.update({f"mesh dimension {n!r}": mesh.get_group(n) for n in names})
    return groups


@contextlib.contextmanager
def _numbered(what: str) -> Iterator[None]:
    """Let torch count on from a number that belongs to ``what``, so that its names are the same in each generation."""
    from torch.distributed import distributed_c10d as c10d

    count = c10d._world.group_count
    c10d._world.group_count = _NAMED_NUMBERS * (1 + crc32(what.encode()))
    try:
        yield
    finally:
        c10d._world.group_count = count


def exchange(spec: FormSpec, backend: str, device: Any, own: set[Endpoint]) -> set[Endpoint]:
    """Tell the other ranks this rank's listeners and check that a collective comes out right; all ranks' listeners."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    world: Any = dist.group.WORLD
    store = c10d._world.pg_map[world][1] if backend != "mpi" else None
    if store is not None:
        store.set(f"listeners/{spec.rank}", json.dumps(sorted(own)))
    expected = spec.world_size * (spec.world_size + 1) // 2
    for on in {device, torch.device("cpu")} if ":" in backend else {device}:
        ranks = torch.full((1,), spec.rank + 1, dtype=torch.int64, device=on)
        dist.all_reduce(ranks)
        if int(ranks.item()) != expected:
            raise LaunchError(
                f"rank {spec.rank}: all_reduce over {on} gave {int(ranks.item())} instead of {expected}; "
                "world's connections are mixed up, stop the cluster and start it again"
            )
    found = set(own)
    if store is not None:
        everybody = store.multi_get([f"listeners/{r}" for r in range(spec.world_size)])
        found.update((str(ip), int(port)) for text in everybody for ip, port in json.loads(text))
    return found


def forget_world() -> None:
    """Empty torch's registries as destroy_process_group does; also after a failed shutdown, or an init that failed.

    An init that fails half-way has counted a group, so that the next world would have another name than on its peers.
    """
    from torch.distributed import distributed_c10d as c10d

    c10d._update_default_pg(None)
    for registry in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg"):
        getattr(c10d._world, registry).clear()
    c10d._unregister_all_process_groups()
    c10d._world.group_count = 0
