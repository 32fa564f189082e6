"""The forkserver: a process that has imported torch and ipykernel and run nothing, from which workers are forked.

`multiprocessing.forkserver` can neither pass a descriptor on to a child, nor be replaced by a forkserver that has
imported more (a *successor*, forked from it), nor make its children those of another process. Each child is forked
twice, so that its parent becomes the agent (a child subreaper), which reaps it, and so that the forkserver's own death
harms no worker. A child dies with the agent by PR_SET_PDEATHSIG.

It stays single-threaded, runs no parallel op and never touches CUDA: a child of a process that did could hang in its
first one. One child is forked ahead. Where nothing is to be forked, a *spare* imports what a forkserver imports, in an
interpreter of its own, and becomes one worker; any other process begins *alone*, as an interpreter that has imported
nothing.

Protocol on a socket pair, one datagram each: a `ProcessReply` when everything has been imported, then one for each
`ProcessRequest`. With that a descriptor may come along, which the child's function gets as its second argument. A
process that begins alone is told in its command line what to run, and reads the specification as one line of standard
input.
"""

import contextlib
import gc
import importlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from jdist.wire.processes import die_with_parent, end_with_job, outlive_job_end, set_name

_ADOPTION = 5.0  # Seconds within which a forked child must have become the agent's.
_QUIET = 0.5  # Seconds without a request after which the next child is forked ahead.
_RECEIVED = b"."
_ANSWER = 5.0  # Seconds for a preforked child to confirm that it has received a request.
_REQUEST_LIMIT = 1 << 20


class ProcessRequest(Struct, frozen=True):
    """Start ``module:function`` with ``spec`` in a new process; its raw output goes to the file ``log``, if any."""

    entry: str
    spec: bytes
    log: str
    env: dict[str, str]


class ProcessReply(Struct, frozen=True):
    """The new process (0 for the imports' end), or what has failed."""

    pid: int = 0
    error: str = ""


class PreforkedChild:
    """One child that is forked before it is asked for: half of what a fresh rank takes is two forks of torch's pages.

    It waits with nothing but a socket to the forkserver; it ends with that, or with the agent. ``fork_twice`` runs a
    function in a new process and returns its pid; ``become`` is what a child does with a request and the descriptors
    that came with it.
    """

    def __init__(self, fork_twice: Callable[[Callable[[], None]], int], become: Callable[[bytes, list[int]], None]):
        self._fork_twice = fork_twice
        self._become = become
        self._socket: socket.socket | None = None
        self._pid = 0

    @property
    def is_empty(self) -> bool:
        return self._socket is None

    def fill(self) -> None:
        """Fork the next child. Where that fails it is tried again, and reported, when a child is needed."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        with theirs, contextlib.suppress(OSError):
            self._pid = self._fork_twice(lambda: self._wait(ours, theirs))
            self._socket = ours
            return
        ours.close()

    def assign(self, request: bytes, fds: list[int]) -> int:
        """Have the child become what ``request`` says; its pid, or 0 if there is none.

        A request can be sent to a child that is being killed, so only a child that confirms it has received it. One
        that does not confirm in time finds that it cannot any more, and ends: another process has taken its role.
        """
        if self._socket is None:
            return 0
        confirmed = b""
        with self._socket as sock, contextlib.suppress(OSError):
            self._socket = None
            sock.settimeout(_ANSWER)
            socket.send_fds(sock, [request], fds)
            try:
                confirmed = sock.recv(1)
            except TimeoutError:
                sock.shutdown(socket.SHUT_RDWR)
                confirmed = sock.recv(1)
        return self._pid if confirmed else 0

    def _wait(self, ours: socket.socket, theirs: socket.socket) -> None:
        ours.close()
        with theirs:
            request, fds, _, _ = socket.recv_fds(theirs, _REQUEST_LIMIT, 1)
            if not request:
                return
            try:
                theirs.send(_RECEIVED)
            except OSError:
                return
        self._become(request, fds)


def serve(fd: int, agent_pid: int, modules: Sequence[str]) -> None:
    """Import ``modules``, then fork on request until the agent closes the socket."""
    sock = socket.socket(fileno=fd)
    _load(sock, modules)
    set_name("jdist-fork")
    fork_twice = partial(_fork_twice, sock, agent_pid)
    preforked = PreforkedChild(fork_twice, _become_requested)
    while True:
        if preforked.is_empty and not select.select([sock], [], [], _QUIET)[0]:
            preforked.fill()
        data, fds, _, _ = socket.recv_fds(sock, _REQUEST_LIMIT, 1)
        if not data:
            return
        try:
            reply = ProcessReply(preforked.assign(data, fds) or fork_twice(partial(_become_requested, data, fds)))
        except OSError as e:
            reply = ProcessReply(error=f"fork failed: {e}")
        for passed in fds:
            os.close(passed)
        sock.send(msgspec.msgpack.encode(reply))


def succeed(spec: bytes, fd: int) -> None:
    """Entry point of a successor, which is forked from a forkserver; ``spec`` has the modules that it imports."""
    set_name("jdist-warm")
    serve(fd, os.getppid(), msgspec.msgpack.decode(spec, type=tuple[str, ...]))


def _load(sock: socket.socket, modules: Sequence[str]) -> None:
    error = ""
    gc.disable()  # imports keep what they make: collections during them take a sixth of their time and free nothing
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception:
        error = traceback.format_exc(limit=3)
    gc.enable()
    gc.collect()
    gc.freeze()  # fewer pages to copy, and later heap walks in the children skip what was imported
    sock.send(msgspec.msgpack.encode(ProcessReply(error=error)))


def _fork_twice(sock: socket.socket, agent_pid: int, life: Callable[[], None]) -> int:
    """The pid of a new process that becomes the agent's child, and then does nothing but ``life``."""
    read_end, write_end = os.pipe()
    try:
        middle = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if middle == 0:
        try:
            os.close(read_end)
            set_name("jdist-next")  # until it calls itself something else; never like the forkserver
            child = os.fork()
            if child == 0:
                os.close(write_end)
                sock.close()
                _run_and_exit(agent_pid, life)
            os.write(write_end, str(child).encode())
        finally:
            os._exit(0)  # whatever fails here: a second process must not go on as the forkserver
    os.close(write_end)
    with os.fdopen(read_end, "rb") as f:
        pid = f.read()
    os.waitpid(middle, 0)
    if not pid:
        raise OSError("the intermediate process ended before it forked")
    return int(pid)


def _run_and_exit(agent_pid: int, life: Callable[[], None]) -> None:
    """Never returns: this is the child. It ends with the agent."""
    code = 1
    try:
        deadline = time.monotonic() + _ADOPTION
        while os.getppid() != agent_pid:  # the kernel sends no notice when it has re-parented a process
            if time.monotonic() > deadline:
                os._exit(3)
            time.sleep(0.0002)
        die_with_parent()
        if os.getppid() != agent_pid:
            os._exit(3)
        life()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        if sys.__stderr__ is not None:
            sys.__stderr__.flush()
        os._exit(code)


def _become_requested(data: bytes, fds: list[int]) -> None:
    """Do what is asked for, as a process of its own."""
    request = msgspec.msgpack.decode(data, type=ProcessRequest)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if request.log:
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.setsid()
    end_with_job()
    os.environ.update(request.env)
    _call(request.entry, request.spec, *fds)


def _call(entry: str, *arguments: object) -> None:
    module, _, function = entry.partition(":")
    getattr(importlib.import_module(module), function)(*arguments)


def main() -> None:
    """Be a forkserver ("server"), a "spare" or a process "alone", in an interpreter that is the agent's child."""
    die_with_parent()
    role, *arguments = sys.argv[1:]
    if role == "alone":
        _call(arguments[0], sys.stdin.buffer.readline())
        return
    fd, agent_pid, modules = int(arguments[0]), int(arguments[1]), arguments[2:]
    outlive_job_end()
    if os.getppid() != agent_pid:
        return  # the agent has ended meanwhile
    if role == "server":
        os.setsid()
        set_name("jdist-fork")
        serve(fd, agent_pid, modules)
        return
    sock = socket.socket(fileno=fd)
    set_name("jdist-warm")
    _load(sock, modules)
    set_name("jdist-spare")
    data = sock.recv(_REQUEST_LIMIT)
    if data:
        sock.send(msgspec.msgpack.encode(ProcessReply(os.getpid())))
        sock.close()
        _run_and_exit(agent_pid, partial(_become_requested, data, []))
