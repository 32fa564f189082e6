"""A rank's environment variables, which are torchrun's, and the store of any further rendezvous in a rank.

``MASTER_ADDR`` and ``MASTER_PORT`` name a port on rank 0's host on which nothing listens. It is reserved for the worlds
that child processes of the ranks form: rank 0's child holds their store there. Parent and child have the same values,
so it makes no difference whether a child inherits the variables, gets a copy of ``os.environ``, or is started after
code has saved and restored them.

In a rank's own process, a rendezvous by ``env://`` (RPC, a library's own group) meets at jdist's store instead, under a
prefix of this generation, so that it never reads keys of an earlier one. At any other port rank 0 holds the store, as
without torchrun.
"""

import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from jdist.core.messages.membership import FormWorld
from jdist.core.topology import Topology
from jdist.worker.compat import torch as torch_compat
from jdist.worker.groups.gloo import Endpoint, connections, connections_to, own_listeners, shut_down

# torch's watchdog of NCCL would end the process at an error or a long wait, or keep it busy with dumps while the world
# is formed again; jdist aborts the communicators itself (docs/design/gpus.md).
_OF_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # else a lost CUDA context ends the process, with all names on the CPU
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # else the error of one rank has rank 0's monitor wait for minutes
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",  # else the watchdog sleeps for a minute at an error, and holds a lock
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400",
}
_KEY = "master"  # Key of the reserved address in the world's store.


class RankEnvironment:
    """The environment of one rank's process, set anew for each generation."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._pid = os.getpid()
        self._prefix = ""
        self._store_host, self._store_port = "", 0
        # A rendezvous at one of these ports meets at that store; code may have saved the port of an earlier generation.
        self._ports: set[int] = set()
        self._clients: set[Endpoint] = set()  # Local ends of connections to the store that cells have made.
        self._listeners: set[Endpoint] = set()  # Those of before.
        self._reserved: socket.socket | None = None

    def install(self) -> None:
        """Make the stores of torch's ``env://`` and ``tcp://`` rendezvous from now on; call this once per process."""
        torch_compat.replace_store_maker(self._make_store)

    def set(self, form: FormWorld, topology: Topology, rank: int) -> None:
        """Set torchrun's variables, OpenMPI's, and those by which torch's watchdog of NCCL leaves errors to jdist."""
        node_rank, local_rank = topology.node_rank(rank), topology.local_rank(rank)
        local_size = len(topology.ranks_on(node_rank))
        values = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "GROUP_RANK": node_rank,
            "ROLE_RANK": rank,
            "ROLE_NAME": "default",
            "WORLD_SIZE": form.world_size,
            "LOCAL_WORLD_SIZE": local_size,
            "GROUP_WORLD_SIZE": topology.nnodes,
            "ROLE_WORLD_SIZE": form.world_size,
            "TORCHELASTIC_RUN_ID": self._run_id,
            "TORCHELASTIC_RESTART_COUNT": form.generation - 1,
            "TORCHELASTIC_MAX_RESTARTS": 1_000_000,  # the world is formed again as often as necessary
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": form.world_size,
            "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        }
        if not self._ports:  # Until the first world is formed, no reserved address is known.
            values |= {"MASTER_ADDR": form.store_host, "MASTER_PORT": form.store_port}
        os.environ.update({name: str(value) for name, value in values.items()})
        for name, value in _OF_NCCL.items():
            os.environ.setdefault(name, value)
        self._store_host, self._store_port = form.store_host, form.store_port
        if form.store_port:
            self._ports.add(form.store_port)
        self._prefix = f"gen{form.generation}/env"
        self._clients.clear()

    # ------------------------------------------------------------ the reserved address

    def publish_master_address(self, store: dist.Store, form: FormWorld) -> None:
        """Reserve a port for as long as this process lives, and publish its address. Called on rank 0."""
        if self._reserved is None:
            self._reserved = _reserve_port()
        host = form.store_host
        for _, here, there in connections():
            if there[1] == form.store_port and here[0] != there[0]:  # the store is on another host than rank 0
                host = here[0]
        store.set(_KEY, json.dumps((host, self._reserved.getsockname()[1])))

    def set_master_address(self, store: dist.Store) -> None:
        """Set ``MASTER_ADDR`` and ``MASTER_PORT`` to the address that rank 0 has published."""
        host, port = json.loads(store.get(_KEY))
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
        self._ports.add(port)

    def close(self) -> None:
        """Release the reserved port."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    # ------------------------------------------------------------ a second rendezvous

    def _make_store(
        self,
        original: Any,
        hostname: str,
        port: int,
        rank: int,
        world_size: int,
        timeout: timedelta,
        use_libuv: bool = True,
    ) -> Any:
        """In torch's place, make the store of a rendezvous by ``env://`` or ``tcp://``."""
        if os.getpid() != self._pid or port not in self._ports:
            return original(hostname, port, rank, world_size, timeout, use_libuv)
        if not self._clients:
            self._listeners = own_listeners()
        # A client of its own, because the rendezvous sets its timeout.
        before = connections_to(self._store_port)
        store = dist.TCPStore(
            self._store_host, self._store_port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        self._clients |= connections_to(self._store_port) - before
        return dist.PrefixStore(self._prefix, store)

    def disconnect(self) -> None:
        """End waits at the stores that a second rendezvous has made, and in what was formed by them."""
        if self._clients:
            shut_down(own_listeners() - self._listeners, self._store_port, self._clients)


def _reserve_port() -> socket.socket:
    """A socket that holds a port without listening. The system gives it only to those who ask for it by number."""
    if socket.has_dualstack_ipv6():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", 0))
    return sock
