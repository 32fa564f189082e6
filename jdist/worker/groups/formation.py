"""RankFormation: the steps by which one rank joins a generation of the world, each a call into torch.distributed.

It chooses a backend, meets the others at the store, makes the groups, and checks that a collective comes out right.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from zlib import crc32

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the first world: it binds the world as default arguments
from msgspec import Struct
from torch.distributed import TCPStore
from torch.distributed import distributed_c10d as c10d

from jdist.core.errors import LaunchError
from jdist.core.messages.membership import FormWorld
from jdist.core.topology import Topology
from jdist.worker.compat import torch as torch_compat
from jdist.worker.groups.environment import RankEnvironment
from jdist.worker.groups.gloo import Endpoint, ListenerWaker, own_listeners, shut_down
from jdist.worker.groups.rpc import RpcState
from jdist.worker.groups.store import StoreClient, meet

FOREVER = timedelta(days=1)  # torch's timeout for collectives: jdist's deadlines come first, and explain.
WORLD = "the world"  # Key of the default group among a generation's groups.
_NAMED_NUMBERS = 1_000_000  # The first number in names of jdist's own groups, far from those of cells' groups.
_AGAIN = 0.05  # Seconds between two attempts to end a formation that is to end.
_SLACK = 2.0  # Seconds that the watchdog leaves to the waits which end by themselves at the deadline.


class Facts(Struct, frozen=True):
    """What a rank tells the others while a generation is formed."""

    listeners: tuple[Endpoint, ...]  # The sockets on which its groups listen.
    rpc: RpcState


class RankFormation:
    """One rank's part in forming one generation.

    ``gpu_index`` is the GPU that is this process's own on its node: its first local rank, also after others were
    removed. Setting ``abandoned`` makes it fail soon. Raises LaunchError for a backend that this torch or this
    machine cannot do.
    """

    def __init__(self, form: FormWorld, rank: int, gpu_index: int, client: StoreClient, abandoned: threading.Event):
        self.form = form
        self.rank = rank
        self._gpu_index = gpu_index
        self._client = client
        self.store: TCPStore | None = None  # Where the world has met, if the cluster has a store.
        self._abandoned = abandoned
        self._deadline = time.monotonic() + form.timeout
        self._topology = Topology(form.nproc_per_node, (), form.node_of)
        self.local_rank = self._topology.local_rank(rank)
        self.node_rank = self._topology.node_rank(rank)
        self._local_world_size = len(self._topology.ranks_on(self.node_rank))
        self.backend, self.device = self._choose()

    def _choose(self) -> tuple[str, torch.device]:
        gpus = torch.cuda.device_count()
        backend = self.form.backend or ("cpu:gloo,cuda:nccl" if gpus >= self._local_world_size else "gloo")
        here = f"rank {self.rank} (node {self.node_rank})"
        available = {"nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available, "gloo": dist.is_gloo_available}
        for name, is_available in available.items():
            if name in backend and not is_available():
                raise LaunchError(
                    f"{here}: backend {backend!r} was asked for, but torch {torch.__version__} there was built without "
                    f"{name}; start with --backend gloo, or install a torch that has {name}"
                )
        if "nccl" not in backend:
            return backend, torch.device("cpu")
        if self._gpu_index >= gpus:
            raise LaunchError(
                f"{here}: backend {backend!r} needs a GPU for each rank, and there are {gpus} for "
                f"{self._local_world_size} ranks on this node; start fewer ranks, or use --backend gloo"
            )
        return backend, torch.device("cuda", self._gpu_index)

    def set_environment(self, environment: RankEnvironment) -> None:
        """Set torchrun's variables and others."""
        environment.set(self.form, self._topology, self.rank)

    @contextlib.contextmanager
    def watchdog(self) -> Iterator[None]:
        """Abort the formation when the deadline passes or it is abandoned: torch would wait a day for a dead rank.

        It may be between two waits at any moment, so it is aborted again and again. A rank that never came is noticed
        earlier, by the meeting at the store.
        """
        before = own_listeners()
        is_over = threading.Event()

        def watch() -> None:
            self._abandoned.wait(max(0.0, self._deadline - time.monotonic()) + _SLACK)
            self._abandoned.set()
            waker = ListenerWaker()
            while not is_over.is_set():
                self._client.disconnect()
                listeners = own_listeners() - before
                waker.wake(listeners, self.form.world_size)
                shut_down(listeners)
                is_over.wait(_AGAIN)

        thread = threading.Thread(target=watch, name="jdist-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            self._abandoned.set()
            thread.join(_SLACK)

    def init_world(self) -> None:
        """Meet the other ranks and make the default group."""
        rank, world_size = self.rank, self.form.world_size
        if "gloo" in self.backend:
            _check_interfaces("GLOO_SOCKET_IFNAME")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch_compat.use_gpu(self.device)
        excepthook = sys.excepthook
        if self.backend == "mpi":
            dist.init_process_group("mpi")
            if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
                raise LaunchError(
                    f"mpirun numbers this process {dist.get_rank()} of {dist.get_world_size()}, jdist {rank} of "
                    f"{world_size}; have mpirun start one `jdist join` for each rank, or use --backend gloo"
                )
        else:
            store, later = self._stores()
            meet(store, rank, world_size, self._deadline - time.monotonic())
            dist.init_process_group(
                self.backend,
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=FOREVER,
                device_id=self.device if self.backend == "nccl" else None,
            )
            torch_compat.set_world_store(later)
        sys.excepthook = excepthook  # torch wraps it at each init, a hundred times for a hundred generations

    def _stores(self) -> tuple[Any, Any]:
        """The store where the world meets, and the one for groups made later, in which a wait can be ended."""
        form = self.form
        if not form.init_method.startswith(("env://", "tcp://", "file://")):
            raise LaunchError(f"--init-method takes env://, tcp://HOST:PORT or file://PATH, not {form.init_method!r}")
        prefix = f"gen{form.generation}"
        lasting = None
        if form.store_port:
            self.store = self._client.get(form.store_host, form.store_port, self._abandoned)
            lasting = dist.PrefixStore(prefix, self.store)
        if not form.init_method.startswith("file://"):
            if lasting is None:
                raise LaunchError(f"rank {self.rank} knows of no rendezvous store for {form.init_method}")
            return lasting, lasting
        path = form.init_method.removeprefix("file://").partition("?")[0]
        prefix = f"{prefix}-{form.store_host}-{form.store_port}"  # the file may be another cluster's
        shared = dist.PrefixStore(prefix, dist.FileStore(path, form.world_size))
        return shared, lasting or shared

    def make_groups(self) -> dict[object, Any]:
        """Everything that is made from the world: the cells' groups, the named ones, the mesh's dimensions."""
        groups: dict[object, Any] = {WORLD: dist.group.WORLD}
        for index, spec in enumerate(self.form.replay):
            name = spec.name or None
            if spec.is_gone:
                torch_compat.set_group_count(torch_compat.group_count() + 1)  # later groups keep torch's names
            elif spec.splits:
                splits = [list(s) for s in spec.splits]
                groups[index] = c10d.split_group(split_ranks=splits, timeout=FOREVER, group_desc=name)
            else:
                timeout = timedelta(seconds=spec.timeout) if spec.timeout else FOREVER
                groups[index] = dist.new_group(
                    list(spec.ranks), timeout, spec.backend, group_desc=name, sort_ranks=False
                )
        for name, ranks in self.form.named.items():
            with _numbered(f"{name}:{ranks}"):
                groups[f"group {name!r}"] = dist.new_group(list(ranks), FOREVER, group_desc=name)
        if self.form.mesh is not None:
            names, sizes = self.form.mesh
            with _numbered(f"mesh:{names}:{sizes}"):
                mesh = dist.init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
            groups["mesh"] = mesh
            groups.update({f"mesh dimension {n!r}": mesh.get_group(n) for n in names})
        return groups

    def exchange(self, own: Facts, environment: RankEnvironment) -> dict[int, Facts]:
        """What all ranks tell each other, by rank; also checks that a collective comes out right."""
        rank, world_size = self.rank, self.form.world_size
        store = torch_compat.world_store() if self.backend != "mpi" else None
        if store is not None:
            if rank == 0 and self.form.store_port:
                environment.publish_master_address(store, self.form)
            store.set(f"facts/{rank}", msgspec.json.encode(own))
        expected = world_size * (world_size + 1) // 2
        for on in {self.device, torch.device("cpu")} if ":" in self.backend else {self.device}:
            ranks = torch.full((1,), rank + 1, dtype=torch.int64, device=on)
            dist.all_reduce(ranks)
            if int(ranks.item()) != expected:
                raise LaunchError(
                    f"rank {rank}: all_reduce over {on} gave {int(ranks.item())} instead of {expected}; "
                    "world's connections are mixed up, stop the cluster and start it again"
                )
        if store is None:
            return {rank: own}
        if self.form.store_port:
            environment.set_master_address(store)
        texts = store.multi_get([f"facts/{r}" for r in range(world_size)])
        return {r: msgspec.json.decode(text, type=Facts) for r, text in enumerate(texts)}


def _check_interfaces(variable: str) -> None:
    """Raise LaunchError if a variable names a network interface that does not exist; gloo's error names no variable."""
    here = [name for _, name in socket.if_nameindex()]
    wanted = [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]
    missing = [name for name in wanted if name not in here]
    if missing:
        raise LaunchError(
            f"{variable}={os.environ[variable]} names no network interface of {socket.gethostname()}, which has "
            f"{', '.join(here)}; set os.environ[{variable!r}] to one of these, or delete it"
        )


@contextlib.contextmanager
def _numbered(what: str) -> Iterator[None]:
    """Let torch count on from a number that belongs to ``what``, so that its names are the same in each generation."""
    count = torch_compat.group_count()
    torch_compat.set_group_count(_NAMED_NUMBERS * (1 + crc32(what.encode())))
    try:
        yield
    finally:
        torch_compat.set_group_count(count)
