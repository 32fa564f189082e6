"""The forkserver: a process that has imported torch and ipykernel and run nothing, from which workers are forked.

A *successor* is forked from it, imports more, and takes its place. A *spare* imports the same in an interpreter of its
own and becomes one worker, where nothing is to be forked.

It stays single-threaded, runs no parallel op and never touches CUDA: a child of a process that did could hang in its
first one. Each child is forked twice, so that its parent becomes the agent (a child subreaper), which reaps it, and so
that the forkserver's own death harms no worker. A child dies with the agent by PR_SET_PDEATHSIG.

Protocol, one datagram each way on a socket pair: ``Fork`` in, ``Forked`` out; ``Loaded`` once, after the imports.
With a ``Fork`` a descriptor may come along, which the child's function gets as its second argument.
"""

from __future__ import annotations

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

from jdist.agent.starters.preforked import Cradle
from jdist.wire.processes import die_with_parent, set_name

_ADOPTION = 5.0
"""Seconds within which a forked child must have become the agent's."""
_QUIET = 0.5
"""Seconds without a request after which one more child is forked, for the next."""


class Fork(Struct, frozen=True):
    """Start ``module:function`` with ``spec`` in a new process; its raw output goes to the file ``log``, if any."""

    entry: str
    spec: bytes
    log: str
    env: dict[str, str]


class Forked(Struct, frozen=True):
    """The new process, or why there is none."""

    pid: int
    error: str = ""


class Succession(Struct, frozen=True):
    """What a successor is to import, and whose child it is."""

    agent_pid: int
    modules: tuple[str, ...]


class Loaded(Struct, frozen=True):
    """The imports are done."""

    seconds: float
    error: str = ""


def serve(fd: int, agent_pid: int, modules: Sequence[str]) -> None:
    """Import ``modules``, then fork on request until the agent closes the socket."""
    sock = socket.socket(fileno=fd)
    _load(sock, modules)
    set_name("jdist-fork")

    def become(request: bytes, fds: list[int]) -> None:
        _be_born(msgspec.msgpack.decode(request, type=Fork), agent_pid, fds)

    cradle = Cradle(partial(_fork_twice, sock), partial(_be_adopted, agent_pid), become)
    while True:
        if cradle.is_empty and not select.select([sock], [], [], _QUIET)[0]:
            cradle.fill()
        data, fds, _, _ = socket.recv_fds(sock, 1 << 20, 1)
        if not data:
            return
        try:
            reply = Forked(cradle.take(data, fds) or _fork_twice(sock, partial(become, data, fds)))
        except OSError as e:
            reply = Forked(0, f"fork failed: {e}")
        for passed in fds:
            os.close(passed)
        sock.send(msgspec.msgpack.encode(reply))


def succeed(spec: bytes, fd: int) -> None:
    """A successor's life."""
    succession = msgspec.msgpack.decode(spec, type=Succession)
    set_name("jdist-warm")
    serve(fd, succession.agent_pid, succession.modules)


def stand_by(fd: int, agent_pid: int, modules: Sequence[str]) -> None:
    """A spare's life: import ``modules``, then become the worker that is asked for."""
    sock = socket.socket(fileno=fd)
    set_name("jdist-warm")
    _load(sock, modules)
    set_name("jdist-spare")
    data = sock.recv(1 << 20)
    if data:
        sock.send(msgspec.msgpack.encode(Forked(os.getpid())))
        sock.close()
        _live(lambda: _be_born(msgspec.msgpack.decode(data, type=Fork), agent_pid, []))


def _load(sock: socket.socket, modules: Sequence[str]) -> None:
    began = time.monotonic()
    error = ""
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception:
        error = traceback.format_exc(limit=3)
    gc.collect()
    gc.freeze()  # fewer pages to copy, and later heap walks in the children skip what was imported
    sock.send(msgspec.msgpack.encode(Loaded(time.monotonic() - began, error)))


def _fork_twice(sock: socket.socket, life: Callable[[], None]) -> int:
    """The pid of a new process that does nothing but ``life``."""
    read_end, write_end = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(read_end)
        set_name("jdist-next")  # until it calls itself something else; never like the forkserver
        child = os.fork()
        if child == 0:
            os.close(write_end)
            sock.close()
            _live(life)
        os.write(write_end, str(child).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as f:
        pid = f.read()
    os.waitpid(middle, 0)
    if not pid:
        raise OSError("the intermediate process ended before it forked")
    return int(pid)


def _live(life: Callable[[], None]) -> None:
    """Never returns: this is the child."""
    code = 1
    try:
        life()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        if sys.__stderr__ is not None:
            sys.__stderr__.flush()
        os._exit(code)


def _be_adopted(agent_pid: int) -> None:
    """Wait until this is the agent's child, and end with it."""
    deadline = time.monotonic() + _ADOPTION
    while os.getppid() != agent_pid:  # the kernel tells nobody when it has re-parented a process
        if time.monotonic() > deadline:
            os._exit(3)
        time.sleep(0.0002)
    die_with_parent()
    if os.getppid() != agent_pid:
        os._exit(3)


def _be_born(request: Fork, agent_pid: int, fds: list[int]) -> None:
    """Do what is asked for, as a process of its own."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if request.log:
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.setsid()
    _be_adopted(agent_pid)
    os.environ.update(request.env)
    module, _, function = request.entry.partition(":")
    getattr(importlib.import_module(module), function)(request.spec, *fds)


def main(role: str, fd: int, agent_pid: int, modules: Sequence[str]) -> None:
    """A forkserver ("server") or a spare, in an interpreter of its own that is the agent's child."""
    die_with_parent()
    if os.getppid() != agent_pid:
        return  # the agent has ended meanwhile
    if role == "spare":
        stand_by(fd, agent_pid, modules)
    else:
        os.setsid()
        set_name("jdist-fork")
        serve(fd, agent_pid, modules)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
