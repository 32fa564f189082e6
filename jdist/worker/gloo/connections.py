"""Freeing a stuck rank from another thread: cut its collectives' connections, abort its receives, see where it is.

A blocked gloo operation ends only when the connections under it end (torch 2.13: no signal, no ``abort()``, no
``destroy_process_group()`` reaches it), and every rank must cut its own. A gloo *listening* socket must never be shut
down: gloo answers with ``std::terminate``. NCCL is ended by its own abort.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct

Endpoint = tuple[str, int]
"""(ip, port), an IPv4 address never in its IPv6-mapped form."""

STORE_WAITS: set[CodeType] = set()
"""Code of the Python functions that are on the stack while a store is waited for; filled by worker/groups/patches."""

_C10D = "distributed_c10d.py"
_RECV_ABORT = "_ZN4c10d16ProcessGroupGloo8RecvWork5abortEv"
_RECV_VTABLE = "_ZTVN4c10d16ProcessGroupGloo8RecvWorkE"
_HEADER = object.__basicsize__
# No WeakSet: its callback would run first when a receive returns, and swallow the KeyboardInterrupt that is due then.
_receives: list[weakref.ref[Any]] = []
_receives_lock = threading.Lock()
_held: dict[int, socket.socket] = {}
"""Connections that are held open, by inode."""


class Where(Struct, frozen=True):
    """Where a thread is, seen from outside it."""

    line: int | None
    """Line of the innermost frame of a cell."""
    op: str | None
    """The torch.distributed function that the cell, or a library it called, is in."""
    function: str
    """Name of the innermost Python function."""
    in_store_wait: bool = False
    """Waits for a key of a rendezvous store (new_group half entered, store.wait)."""
    in_recv_any: bool = False
    """Waits in ``dist.recv`` for a message from any rank."""
    store_port: int | None = None
    """Port of the TCPStore that is waited for, where the cell waits for it by name."""


def endpoint(address: Any) -> Endpoint:
    """A socket's address as ``(ip, port)``."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _inet_sockets() -> Iterator[socket.socket]:
    """A duplicate of each of this process's internet sockets, closed when the next one is asked for."""
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed by its owner in the meantime
            continue
        with copy:
            if copy.family in {socket.AF_INET, socket.AF_INET6} and copy.type == socket.SOCK_STREAM:
                yield copy


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def own_listeners() -> set[Endpoint]:
    """Every internet address on which this process accepts connections."""
    return {endpoint(sock.getsockname()) for sock in _inet_sockets() if _listens(sock)}


def connections_to(port: int) -> set[Endpoint]:
    """Local ends of this process's connections to ``port`` of any host."""
    ends: set[Endpoint] = set()
    for sock in _inet_sockets():
        try:
            if not _listens(sock) and endpoint(sock.getpeername())[1] == port:
                ends.add(endpoint(sock.getsockname()))
        except OSError:  # not connected
            continue
    return ends


def cut(listeners: Collection[Endpoint], store_ports: Collection[int] = (), keep: Collection[Endpoint] = ()) -> int:
    """Shut down this process's connections that have an end in ``listeners``, or that go to one of ``store_ports``.

    ``listeners`` are all ranks' gloo listeners. Connections whose local end is in ``keep`` stay, and so do listening
    sockets and every other connection of the process. Returns how many were cut.
    """
    count = 0
    for sock in _inet_sockets():
        try:
            if _listens(sock):
                continue
            here, there = endpoint(sock.getsockname()), endpoint(sock.getpeername())
            if here in listeners or there in listeners or (there[1] in store_ports and here not in keep):
                sock.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:  # not connected, or already cut
            continue
    return count


def quiet(listeners: Collection[Endpoint]) -> int:
    """End the reading side of the connections that have an end in ``listeners``, and hold them open; returns how many.

    gloo takes the end of what it reads for the end of a connection, and fails what it has pending there. A message that
    it has read before asks for data that it still writes: if that write fails (a connection shut down on both sides, or
    one that the peer has closed), gloo forgets the operation, which then waits for ever in ``waitSend`` (torch 2.13).
    So nothing may fail to be written before :func:`let_go`, and no peer may see this end close.
    """
    count = 0
    for sock in _inet_sockets():
        try:
            inode = os.fstat(sock.fileno()).st_ino
            if inode in _held or _listens(sock):
                continue
            if {endpoint(sock.getsockname()), endpoint(sock.getpeername())} & {*listeners}:
                _held[inode] = sock.dup()
                sock.shutdown(socket.SHUT_RD)
                count += 1
        except OSError:  # not connected
            continue
    return count


def let_go() -> None:
    """Close what :func:`quiet` holds: every rank has left the groups of those connections."""
    while _held:
        _held.popitem()[1].close()


# ---------------------------------------------------------------- receives from any rank


def watch_recv_any() -> None:
    """Remember each receive from any rank while it lives: such a receive waits for no connection, so no cut ends it."""
    import torch.distributed as dist

    original = dist.ProcessGroup.recv_anysource
    if getattr(original, "is_watched", False):
        return

    def recv_anysource(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        with _receives_lock:
            _receives[:] = [r for r in _receives if (w := r()) is not None and not w.is_completed()]
            _receives.append(weakref.ref(work))
        return work

    recv_anysource.__doc__ = original.__doc__
    recv_anysource.is_watched = True  # type: ignore[attr-defined]
    dist.ProcessGroup.recv_anysource = recv_anysource  # type: ignore[method-assign]


def abort_recv_any() -> int:
    """Wake the receives from any rank that are still waited for; returns how many.

    The receive then returns *without* data and without an exception, so send SIGINT first. Uses
    ``ProcessGroupGloo::RecvWork::abort``, which torch does not hand to Python; an object whose C++ class is not exactly
    that one (its vtable is compared) is left alone.
    """
    with _receives_lock:
        works = [w for r in _receives if (w := r()) is not None and not w.is_completed()]
    library = _torch_cpu()
    if not works or library is None:
        return 0
    vtable = ctypes.addressof(ctypes.c_char.in_dll(library, _RECV_VTABLE)) + 2 * ctypes.sizeof(ctypes.c_void_p)
    abort = library[_RECV_ABORT]
    abort.argtypes, abort.restype = [ctypes.c_void_p], None
    count = 0
    for work in works:
        held = ctypes.c_void_p.from_address(id(work) + _HEADER).value
        if held and ctypes.c_void_p.from_address(held).value == vtable:
            abort(held)
            count += 1
    return count


def _torch_cpu() -> ctypes.CDLL | None:
    """The library that holds the two symbols, or None where a build of torch does not export them."""
    import torch

    if sys.implementation.name != "cpython":
        return None
    try:
        library = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so"))
        ctypes.c_char.in_dll(library, _RECV_VTABLE)
        library[_RECV_ABORT]
    except (OSError, ValueError, AttributeError):
        return None
    return library


def abort_nccl() -> bool:
    """Abort every NCCL communicator of this process; False where there is none. Blocks until NCCL has done it.

    All groups at once: NCCL deadlocks when communicators are aborted one by one (pytorch#119797).
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    world = dist.group.WORLD
    if world is None or "nccl" not in str(c10d._world.pg_backend_config.get(world, "")):
        return False
    c10d._abort_process_group()
    return True


# ---------------------------------------------------------------- where


def where(main_thread_ident: int, is_cell: Callable[[str], bool]) -> Where:
    """Where the thread is. ``is_cell`` tells whether a file name is a cell's. Costs the thread nothing."""
    frame = sys._current_frames().get(main_thread_ident)
    if frame is None:
        return Where(None, None, "")
    frames = list(_outwards(frame))
    line = next((f.f_lineno for f in frames if is_cell(f.f_code.co_filename)), None)
    waiting = next((f for f in frames[:3] if waits_for_store(f, is_top=f is frame)), None)
    return Where(
        line,
        operation(frames),
        frame.f_code.co_name,
        waiting is not None,
        any(_receives_from_any(f) for f in frames[:3]),
        _store_port(waiting),
    )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def operation(frames: list[FrameType]) -> str | None:
    """The outermost public function of torch.distributed's API: what was called, not what it calls inside."""
    name = None
    for frame in frames:
        code = frame.f_code
        if code.co_filename.endswith(_C10D) and not code.co_name.startswith(("_", "wrapper", "<")):
            name = code.co_name
    if name is None and frames[0].f_code in STORE_WAITS:
        name = f"store.{frames[0].f_code.co_name}"
    return name


def waits_for_store(frame: FrameType, *, is_top: bool) -> bool:
    """Whether the function waits for a key of a rendezvous store; ``is_top``: it calls no other Python function."""
    code = frame.f_code
    if code in STORE_WAITS or code.co_name == "_store_based_barrier":
        return True
    # Group construction in C++ waits for the peers' addresses in the store.
    return is_top and code.co_filename.endswith(_C10D) and code.co_name == "_new_process_group_helper"


def _receives_from_any(frame: FrameType) -> bool:
    if not frame.f_code.co_filename.endswith(_C10D) or frame.f_code.co_name != "recv":
        return False
    seen = frame.f_locals
    return seen.get("src") is None and seen.get("group_src") is None


def _store_port(frame: FrameType | None) -> int | None:
    store: Any = frame.f_locals.get("store") if frame is not None else None
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return int(port) if isinstance(port, int) else None
