"""A rank's environment variables, which are torchrun's, and the store of any further rendezvous in a rank.

torchrun's agent holds a store at ``MASTER_PORT``, and torch connects every rank to it there. So do ranks here: what a
cell makes by ``env://`` (RPC, a library's own group) meets at jdist's store, under a prefix of the generation's own, so
that no key of an earlier one is ever read. At any other port rank 0 holds the store, as without torchrun.

A child process of a rank is not a rank. It gets a different ``MASTER_PORT``, which is kept free on rank 0's host, so
that children can form a world of their own there.
"""

import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from jdist.core.messages.groups import FormWorld
from jdist.core.topology import Topology
from jdist.worker.compat import torch as torch_compat
from jdist.worker.gloo.connections import Endpoint, connections, connections_to, own_listeners, shut_down

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
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
_KEY = "children"  # Key of the address at which children of ranks can form a world.


class RankEnvironment:
    """The environment of one rank's process, set anew for each generation."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._pid = os.getpid()
        self._prefix = ""
        self._store_host, self._store_port = "", 0
        self._clients: set[Endpoint] = set()  # Local ends of connections to the store that cells have made.
        self._listeners: set[Endpoint] = set()  # Those of before.
        self._children: tuple[str, int] = ("", 0)
        self._kept_free: socket.socket | None = None

    def install(self) -> None:
        """Have torch look for the store here, and children begin with their own variables; once a process."""
        torch_compat.replace_store_maker(self._make_store)
        os.register_at_fork(after_in_child=self._become_child)

    @property
    def is_own_process(self) -> bool:
        """Whether this is the rank's process rather than a child that it forked."""
        return os.getpid() == self._pid

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
            "MASTER_ADDR": form.store_host,
            "MASTER_PORT": form.store_port,
            "TORCHELASTIC_RUN_ID": self._run_id,
            "TORCHELASTIC_RESTART_COUNT": form.generation - 1,
            "TORCHELASTIC_MAX_RESTARTS": 1_000_000,  # the world is formed again as often as necessary
            _AGENT_STORE: True,
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": form.world_size,
            "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        }
        os.environ.update({name: str(value) for name, value in values.items()})
        for name, value in _OF_NCCL.items():
            os.environ.setdefault(name, value)
        self._store_host, self._store_port = form.store_host, form.store_port
        self._prefix = f"gen{form.generation}/env"
        self._clients.clear()

    # ------------------------------------------------------------ children

    def publish_for_children(self, store: dist.Store, form: FormWorld) -> None:
        """On rank 0: tell the others where ranks' children can hold a store. It stays free as long as rank 0 lives."""
        if self._kept_free is None:
            self._kept_free = _keep_port_free()
        host = form.store_host
        for _, here, there in connections():
            if there[1] == form.store_port and here[0] != there[0]:  # the store is on another host than rank 0
                host = here[0]
        store.set(_KEY, json.dumps((host, self._kept_free.getsockname()[1])))

    def set_for_children(self, store: dist.Store) -> None:
        """Give the processes that this one will start their own variables.

        Those of ``os.environ`` are this process's, those of the C library are inherited by what it executes.
        """
        host, port = json.loads(store.get(_KEY))
        self._children = (str(host), int(port))
        os.unsetenv(_AGENT_STORE)
        os.putenv("MASTER_ADDR", self._children[0])
        os.putenv("MASTER_PORT", str(self._children[1]))

    def close(self) -> None:
        """Keep no port free any more."""
        if self._kept_free is not None:
            self._kept_free.close()
            self._kept_free = None

    def _become_child(self) -> None:
        os.environ.pop(_AGENT_STORE, None)
        if self._children[1] and os.environ.get("MASTER_PORT") == str(self._store_port):
            os.environ.update(MASTER_ADDR=self._children[0], MASTER_PORT=str(self._children[1]))

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
        if not self.is_own_process or port != self._store_port or os.environ.get(_AGENT_STORE) != str(True):
            return original(hostname, port, rank, world_size, timeout, use_libuv)
        if not self._clients:
            self._listeners = own_listeners()
        # A client of its own, because the rendezvous sets its timeout.
        before = connections_to(port)
        store = dist.TCPStore(self._store_host, port, is_master=False, timeout=timeout, wait_for_workers=False)
        self._clients |= connections_to(port) - before
        return dist.PrefixStore(self._prefix, store)

    def disconnect(self) -> None:
        """End waits at the stores that a second rendezvous has made, and in what was formed by them."""
        if self._clients:
            shut_down(own_listeners() - self._listeners, self._store_port, self._clients)


def _keep_port_free() -> socket.socket:
    """A socket that holds a port without listening. The system gives it only to those who ask for it by number."""
    if socket.has_dualstack_ipv6():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", 0))
    return sock
