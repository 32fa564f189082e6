"""Free a rank that gloo blocks: in a collective, in a receive, in the making of a group, or in a callback.

A blocked gloo operation ends only when the connections under it end (torch 2.13: no signal, no ``abort()``, no
``destroy_process_group()`` reaches it), and every rank must end its own. A gloo *listening* socket must never be shut
down: gloo answers with ``std::terminate``.

Waits outside the main thread, such as those in callbacks of futures, are replaced by waits that can be ended. A gloo
group has two threads, which run its collectives and then what ``future.then`` was given. If callbacks wait for further
collectives on both, nothing is run any more: PowerSGD's communication hook does that as soon as there are two buckets
(torch 2.13, also without jdist). No end of a connection reaches a collective that has not begun. So such a wait ends on
request; its thread goes on to the collectives that are queued, and these fail.
"""

import contextlib
import functools
import os
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Collection, Iterator
from typing import Any

import torch.distributed as dist

from jdist.worker.compat import torch as torch_compat
from jdist.worker.compat.torch import Future, compile_as
from jdist.worker.observe.call_log import OWN_FILES
from jdist.worker.observe.main_thread import TRANSPARENT

Endpoint = tuple[str, int]  # (ip, port), an IPv4 address never in its IPv6-mapped form.

_CONNECT = 1.0
_receives: list[weakref.ref[Any]] = []  # No WeakSet: its callback would swallow a KeyboardInterrupt due then.
_receives_lock = threading.Lock()
_held: dict[int, socket.socket] = {}  # Connections that are held open, by inode.


def endpoint(address: Any) -> Endpoint:
    """A socket's address as ``(ip, port)``."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _inet_sockets(*, listening: bool) -> Iterator[socket.socket]:
    """A duplicate of each of this process's listening or other TCP sockets, closed when the next one is taken."""
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed by its owner in the meantime
            continue
        with copy:
            if copy.family in {socket.AF_INET, socket.AF_INET6} and copy.type == socket.SOCK_STREAM:
                with contextlib.suppress(OSError):
                    if bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) == listening:
                        yield copy


def connections() -> Iterator[tuple[socket.socket, Endpoint, Endpoint]]:
    """A duplicate of each connected TCP socket with its local and remote endpoint."""
    for sock in _inet_sockets(listening=False):
        with contextlib.suppress(OSError):  # not connected
            there = endpoint(sock.getpeername())  # first: another thread may be connecting it
            yield sock, endpoint(sock.getsockname()), there


def own_listeners() -> set[Endpoint]:
    """Every internet address on which this process accepts connections."""
    return {endpoint(sock.getsockname()) for sock in _inet_sockets(listening=True)}


def connections_to(port: int) -> set[Endpoint]:
    """Local ends of this process's connections to ``port`` of any host."""
    return {here for _, here, there in connections() if there[1] == port}


def shut_down(
    listeners: Collection[Endpoint], store_port: int = 0, store_ends: Collection[Endpoint] | None = None
) -> int:
    """Shut down connections with an end in ``listeners`` or to ``store_port`` of any host; returns how many there were.

    ``listeners`` are all ranks' gloo listeners. Of the connections to the store, only those whose local end is in
    ``store_ends`` are shut down, unless it is None.
    """
    count = 0
    for sock, here, there in connections():
        is_to_store = there[1] == store_port and (store_ends is None or here in store_ends)
        if here in listeners or there in listeners or is_to_store:
            with contextlib.suppress(OSError):  # already shut down
                sock.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def stop_listening(listeners: Collection[Endpoint]) -> None:
    """Shut down this process's listening sockets that are in ``listeners``: a wait for a connection there fails."""
    for sock in _inet_sockets(listening=True):
        if endpoint(sock.getsockname()) in listeners:
            with contextlib.suppress(OSError):  # already shut down
                sock.shutdown(socket.SHUT_RDWR)


def end_reading(listeners: Collection[Endpoint]) -> int:
    """End the reading side of the connections that have an end in ``listeners``, and hold them open; returns how many.

    gloo fails what is pending when its reading ends. But if a write fails (this end shut down on both sides, or closed
    by the peer), it forgets the operation, which then waits for ever in ``waitSend`` (torch 2.13). So no write may fail
    before :func:`release`, and no peer may see this end close.
    """
    count = 0
    for sock, here, there in connections():
        inode = os.fstat(sock.fileno()).st_ino
        if inode not in _held and (here in listeners or there in listeners):
            with contextlib.suppress(OSError):  # already shut down
                _held[inode] = sock.dup()
                sock.shutdown(socket.SHUT_RD)
                count += 1
    return count


def release() -> None:
    """Close what :func:`end_reading` holds: every rank has left the groups of those connections."""
    while _held:
        _held.popitem()[1].close()


class ListenerWaker:
    """Ends waits for a peer which will never connect; once for each of this process's own listeners.

    Of two ranks of a new gloo group, the one with the lower address listens and, if the other died or was freed, waits
    for as long as torch's timeout, without a connection of its own that could be shut down. gloo's listener takes a
    connection for the one whose number (its place among the listener's, 8 bytes) is read from it first, also when it
    comes early. One that is made here and closed ends the wait with "Connection closed by peer".
    """

    def __init__(self) -> None:
        self._done: set[Endpoint] = set()

    def wake(self, listeners: Collection[Endpoint], world_size: int) -> None:
        """Connect as every rank that may be waited for at ``listeners``, of groups that shall not be formed."""
        for listener in set(listeners) - self._done:
            self._done.add(listener)
            with contextlib.suppress(OSError):  # it has just been closed
                for number in range(world_size):
                    with socket.create_connection(listener, _CONNECT) as sock:
                        sock.sendall(struct.pack("=q", number))


# ---------------------------------------------------------------- receives from any rank


def remember_receives() -> None:
    """Remember, from now on, each receive from any rank while it lives: no end of a connection ends its wait."""
    original = dist.ProcessGroup.recv_anysource

    def recv_anysource(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        with _receives_lock:
            _receives[:] = [r for r in _receives if (w := r()) is not None and not w.is_completed()]
            _receives.append(weakref.ref(work))
        return work

    recv_anysource.__doc__ = original.__doc__
    dist.ProcessGroup.recv_anysource = recv_anysource  # type: ignore[method-assign]


def abort_receives() -> None:
    """Wake the receives from any rank that are pending. Send SIGINT first: they return garbage."""
    with _receives_lock:
        works = [w for r in _receives if (w := r()) is not None and not w.is_completed()]
    for work in works:
        torch_compat.abort_receive(work)


_ENDED = "Connection closed by peer: the run was ended while a callback waited for this collective"


class CallbackWaits:
    """The waits of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[threading.Event] = set()
        self._is_over = False
        self.generation = 0  # Counts the calls of `resume`.

    def install(self) -> None:
        """Put stand-ins in place of the two methods that wait, once a process, before user code runs."""
        wait_for_future, wait_for_work = Future.wait, dist.Work.wait
        main = threading.main_thread().ident

        @functools.wraps(wait_for_future)
        def wait(future: Any) -> Any:
            if threading.get_ident() != main:
                self._wait(future)
            return wait_for_future(future)

        @functools.wraps(wait_for_work)
        def wait_work(work: Any, *timeout: Any, **options: Any) -> Any:
            if threading.get_ident() != main and not timeout and not options:
                try:
                    future = work.get_future()
                except RuntimeError:  # a send or receive has none; it does not wait for one of the two threads
                    return wait_for_work(work)
                self._wait(future)
            return wait_for_work(work, *timeout, **options)

        classes: Any = (Future, dist.Work)
        stand_ins: Any = (wait, wait_work)
        for waited, stand_in in zip(classes, stand_ins, strict=True):
            compile_as(stand_in, waited.wait)
            TRANSPARENT.add(stand_in.__code__)
            waited.wait = stand_in
        OWN_FILES.add(__file__)

    def _wait(self, future: Any) -> None:
        if future.done():
            return
        woken = threading.Event()
        with self._lock:
            if self._is_over:
                raise RuntimeError(_ENDED)
            self._waiting.add(woken)
        try:
            future.add_done_callback(lambda _: woken.set())
            woken.wait()
        finally:
            with self._lock:
                self._waiting.discard(woken)
        if not future.done():
            raise RuntimeError(_ENDED)

    def end(self, generation: int) -> None:
        """End the current waits, and each later one at once: the generation's connections have been ended.

        Does nothing if that generation has been left: the waits are those of the next one's formation then.
        """
        with self._lock:
            if generation != self.generation:
                return
            self._is_over = True
            for woken in self._waiting:
                woken.set()

    def resume(self) -> None:
        """The generation has been left."""
        with self._lock:
            self._is_over = False
            self.generation += 1


waits = CallbackWaits()
