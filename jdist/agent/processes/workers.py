"""Workers: this node's ranks' processes, by rank; started, replaced, renumbered and told; their ends are explained.

A worker is *starting* until its process has said hello and its output is heard, then *up*, until it ends by itself or
is dismissed, after which nothing more is heard of it. Only this module adds and removes workers; whoever has to know is
told through `Listener`, on the running loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from jdist.agent.node.facts import interface_environment
from jdist.agent.node.join_options import Wish
from jdist.agent.node.tasks import WORKER
from jdist.agent.processes.exits import explain_exit
from jdist.agent.processes.kernel import Kernel, Place, Starter
from jdist.agent.processes.oom import OomWatch
from jdist.agent.processes.reaper import Reaper
from jdist.agent.relay.iopub import KernelMessage
from jdist.core.errors import LaunchError
from jdist.core.messages.base import Message
from jdist.core.messages.membership import BeRank, Welcome, WorkerHello
from jdist.core.messages.protocol import WorkerMessage
from jdist.core.specs import WorkerSpec
from jdist.wire.transport.sockets import bind_ipc
from jdist.wire.values.frames import Unpacker, pack
from jdist.wire.values.segments import sweep_dead

_CHILDREN_END = 5.0
"""Seconds for killed children to be gone."""
_UP_WITHIN = 120.0
"""Seconds for a worker's process to be ready for cells."""
_TOGETHER = 0.25
"""Seconds within which signals to all processes of a node reach the last of them."""

_from_worker: Unpacker[Any] = Unpacker(WorkerMessage)


class Listener(Protocol):
    """Who has to know what becomes of the workers."""

    def on_kernel(self, kernel: Kernel, channel: str, message: KernelMessage) -> None:
        """Its kernel has written something, or asks for input."""

    def on_hello(self, kernel: Kernel) -> None:
        """It can be told things."""

    def on_worker(self, message: Any) -> None:
        """It has something to say, under the rank that it has now."""

    def on_up(self, kernel: Kernel) -> None:
        """It is ready for cells."""

    def on_exit(self) -> None:
        """A process has ended; what it wrote has been read."""

    def on_down(self, rank: int, incarnation: int, reason: str) -> None:
        """The rank has lost its process, or got none."""


@dataclass(frozen=True)
class House:
    """What all workers of a node share."""

    context: Any
    directory: Path
    cluster: str
    starter: Starter
    wish: Wish
    gpus: int


class Workers:
    """The kernels by rank, and the socket on which they are told things."""

    def __init__(self, house: House, listener: Listener, keep: Callable[[Coroutine[Any, Any, None]], None]):
        self._house = house
        self._listener = listener
        self._keep = keep
        self._kernels: dict[int, Kernel] = {}
        self._numbers = itertools.count()
        self._reaper = Reaper()
        self._oom = OomWatch()
        self._welcome: Welcome | None = None
        self._address = ""
        self._socket = bind_ipc(house.context, str(house.directory / "agent"), self._on_message)

    @property
    def kernels(self) -> Mapping[int, Kernel]:
        return self._kernels

    def settle(self, welcome: Welcome, address: str) -> None:
        """Workers that are started from now on are of this place in the world, at this address."""
        self._welcome = welcome
        self._address = address

    def tick(self) -> None:
        """Have a look at the memory, now and then."""
        self._oom.tick()

    # ------------------------------------------------------------ who there is

    def replace(self, rank: int, incarnation: int) -> bool:
        """Kill what is left of the rank's worker and start a fresh one; False if that is down already."""
        house = self._house
        old = self._kernels.pop(rank, None)
        if old is not None:
            old.dismiss()
        place = Place(str(house.directory), next(self._numbers), rank, incarnation, self._free_gpu())
        try:
            kernel = Kernel(house.context, place, self._reaper, self._on_kernel, self._on_exit)
        except OSError as e:
            self._listener.on_down(rank, incarnation, str(e))
            return False
        self._kernels[rank] = kernel
        self._keep(self._start(kernel))
        return True

    def renumber(self, ranks: Mapping[int, int]) -> None:
        """Ranks get other numbers; those that get none end."""
        old = dict(self._kernels)
        self._kernels.clear()
        for rank, kernel in old.items():
            if rank in ranks:
                kernel.rank = ranks[rank]
                self._kernels[kernel.rank] = kernel
                self._tell_rank(kernel)
            else:
                kernel.dismiss()

    def dismiss(self) -> None:
        """End all of them; nothing more is heard of them."""
        for kernel in self._kernels.values():
            kernel.dismiss()
        self._kernels.clear()

    def close(self) -> None:
        """Leave no process behind, whoever started it: the node has no workers any more."""
        kernels = list(self._kernels.values())
        self.dismiss()
        self._house.starter.close()
        self._reaper.end_all(_CHILDREN_END)
        for kernel in kernels:
            kernel.close()
        self._socket.close()
        self._oom.close()

    def _free_gpu(self) -> int:
        """The GPU of the next worker: the lowest that none of the others has, or the one that is the task's."""
        task = self._house.wish.task
        if task is not None and self._welcome is not None and self._welcome.is_task:
            return task.gpu if task.gpu >= 0 else self._house.gpus  # none: the first that is not there
        taken = {k.place.gpu_index for k in self._kernels.values()}
        return next(n for n in itertools.count() if n not in taken)

    # ------------------------------------------------------------ start and end

    async def _start(self, kernel: Kernel) -> None:
        welcome, place, house = self._welcome, kernel.place, self._house
        if welcome is None:
            raise LaunchError("no place in the world yet")
        threads = 1 if welcome.nproc > 1 or welcome.is_task else os.cpu_count() or 1
        threads = int(os.environ.get("OMP_NUM_THREADS", threads))
        spec = WorkerSpec(
            rank=place.rank,
            gpu_index=place.gpu_index,
            identity=place.identity.decode(),
            connection_file=str(place.connection_file),
            agent_socket=str(house.directory / "agent"),
            handover_socket=str(house.directory / "handover"),
            cluster=house.cluster,
            threads=threads,
        )
        env = {
            **(house.wish.launcher if welcome.keeps_launcher else {}),
            WORKER: "1",
            "RANK": str(place.rank),
            "OMP_NUM_THREADS": str(threads),
            **interface_environment(self._address),
        }
        try:
            await kernel.start(house.starter, spec, env)
            asyncio.get_running_loop().call_later(_UP_WITHIN, _give_up, kernel)
            self._oom.watch(kernel.pid)
        except (LaunchError, OSError) as e:
            kernel.close()
            if not kernel.is_dismissed:
                del self._kernels[kernel.rank]
                self._listener.on_down(kernel.rank, place.incarnation, str(e))

    def _on_exit(self, kernel: Kernel, status: int | None) -> None:
        if status == signal.SIGTERM:  # a scheduler that ends the node's job sends that to all of its processes
            asyncio.get_running_loop().call_later(_TOGETHER, self._take_exit, kernel, status)
        else:
            self._take_exit(kernel, status)

    def _take_exit(self, kernel: Kernel, status: int | None) -> None:
        place = kernel.place
        reason = explain_exit(status, self._oom.verdict(kernel.pid))
        self._oom.forget(kernel.pid)
        self._listener.on_exit()
        sweep_dead(self._house.cluster)
        if not kernel.is_dismissed:
            del self._kernels[kernel.rank]
            self._listener.on_down(kernel.rank, place.incarnation, reason + _last_words(place.raw_log))

    # ------------------------------------------------------------ what they say and are told

    def send(self, rank: int, message: Message) -> bool:
        """Tell the rank's worker; False if there is none."""
        return bool(self.forward((rank,), pack(message)))

    def forward(self, ranks: Collection[int], data: bytes) -> int:
        """Tell those of the ranks that are here a message as it came: a large cell is packed once. How many."""
        there = filter(None, map(self._kernels.get, ranks))
        return sum(self._socket.send([kernel.place.identity, data]) for kernel in there)

    def _on_kernel(self, kernel: Kernel, channel: str, message: KernelMessage) -> None:
        if channel == "iopub" and not kernel.is_hearing:
            kernel.is_hearing = True
            self._announce(kernel)
        self._listener.on_kernel(kernel, channel, message)

    def _on_message(self, frames: list[bytes]) -> None:
        kernel = next((k for k in self._kernels.values() if k.place.identity == frames[0]), None)
        if kernel is None:
            return  # it has just been replaced, or removed
        message = under_its_rank(kernel, _from_worker(frames[-1]))
        if not isinstance(message, WorkerHello):
            self._listener.on_worker(message)
            return
        kernel.has_said_hello = True
        self._listener.on_hello(kernel)
        if kernel.rank != kernel.place.rank:
            self._tell_rank(kernel)
        self._announce(kernel)

    def _tell_rank(self, kernel: Kernel) -> None:
        """A worker that is not there yet is told when it is."""
        if kernel.has_said_hello:
            self.send(kernel.rank, BeRank(kernel.rank))

    def _announce(self, kernel: Kernel) -> None:
        if kernel.is_up:
            self._listener.on_up(kernel)


def under_its_rank(kernel: Kernel, message: Any) -> Any:
    """A worker's message with the rank that it has now; it may not have heard of that yet."""
    return message if message.rank == kernel.rank else msgspec.structs.replace(message, rank=kernel.rank)


def _give_up(kernel: Kernel) -> None:
    """A process that is there and never gets ready is ended; its rank is told to be lost for that."""
    if not kernel.is_up and not kernel.is_dismissed:
        print(f"jdist agent: rank {kernel.rank} was not ready within {_UP_WITHIN:.0f} s; ending it", file=sys.stderr)
        kernel.kill()


def _last_words(raw_log: str) -> str:
    """The end of what the process wrote outside its cells, if anything."""
    with contextlib.suppress(OSError):
        lines = Path(raw_log).read_text(errors="replace").strip().splitlines()
        if lines:
            return "; it last wrote: " + " / ".join(lines[-3:])[-400:]
    return ""
