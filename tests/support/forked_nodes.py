"""Nodes that are forked instead of started, so that one process of a test run imports torch for all of them.

Importing torch takes a node longer than all the rest of its start. The *importer* imports what agents and ranks need,
once, and forks an agent for whoever runs ``python -P -m jdist join``; the agent's forkserver is forked along with it.
``sys.executable`` of the test run, and of all that it starts, is a script that makes such a command a *stand-in*: it
asks the importer for the agent, passes signals on to it, and ends as it ends. If the stand-in is killed, so is the
agent. All other commands run as they are. So does this one where a forked agent would differ: in other namespaces,
cgroups or limits, for another user, or with other variables that an interpreter or torch reads when it starts.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.process
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ADDRESS = "JDIST_TEST_IMPORTER"
"""The variable that names the importer's socket. Without it, every node is started."""
STAND_IN = f"{__file__} stand-in"
"""What every stand-in has in its command line."""
_READ_AT_START = ("PYTHON", "LD_", "OMP", "MKL", "KMP", "TORCH", "CUDA", "JDIST", "MPL", "LC_", "LANG", "TZ")
_SET_BY_IMPORTS = ("MPLBACKEND", "TORCHINDUCTOR_CACHE_DIR")  # In a test process that has imported what a rank imports.
_SEED = "PYTHONHASHSEED"  # Which a forkserver is started with, and so the importer.
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_REQUEST_LIMIT = 1 << 20  # Bytes.
_ANSWER_LIMIT = 64
_DECLINED = b"declined"
_FORKED = b"forked"
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ANSWER = 10.0  # Seconds.
_LOADED = 60.0  # Seconds for the importer to have imported everything, after which a node is started instead.
_PYTHON = """\
#!/bin/bash
# The interpreter of a test run, which forks its nodes: see tests/support/forked_nodes.py. May be removed at any time.
if [[ -S ${address} && "$1 $2 $3 $4" == "-P -m jdist join" ]]; then
  exec '{python}' -I -S '{module}' stand-in "$0" "$@"
fi
exec -a "$0" '{python}' "$@"
"""


@contextlib.contextmanager
def forking_nodes(directory: Path) -> Iterator[int]:
    """Have nodes forked from now on that this process starts, or what it starts; yields the importer's pid, or 0.

    In an environment that is not virtual nothing changes, since the script has no place there.
    """
    if sys.prefix == sys.base_prefix:
        yield 0
        return
    real, script = sys.executable, Path(sys.prefix, "bin", "python-forking-nodes")
    draft = script.with_name(f"{script.name}-{os.getpid()}")
    draft.write_text(_PYTHON.format(address=ADDRESS, python=real, module=__file__))
    draft.chmod(0o755)
    draft.rename(script)
    sys.executable = str(script)
    os.environ[ADDRESS] = str(directory / "importer")
    start = "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; import forked_nodes; del sys.path[0]"
    start += "; sys.exit(forked_nodes.fork_nodes()())"  # so that nothing of this module is on their stacks
    with open(directory / "importer.log", "wb") as log:
        importer = subprocess.Popen(
            [sys.executable, "-c", start, str(Path(__file__).parent), os.environ.get(_SEED, "")],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={_SEED: "0", **os.environ},
            start_new_session=True,
        )
    try:
        yield importer.pid
    finally:
        sys.executable = real
        del os.environ[ADDRESS]
        importer.stdin.close()
        try:
            importer.wait(_ANSWER)
        except subprocess.TimeoutExpired:
            importer.kill()
            importer.wait(_ANSWER)


def _circumstances() -> Any:
    """What a forked agent has from the importer, and a started one from whoever starts it."""
    mask = os.umask(0o77)
    os.umask(mask)
    found = {
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
        "processors": sorted(os.sched_getaffinity(0)),
        "user": [os.getuid(), os.getgid(), mask, os.nice(0)],
        "variables": {k: v for k, v in os.environ.items() if k.startswith(_READ_AT_START) and k not in _SET_BY_IMPORTS},
    }
    return json.loads(json.dumps(found))


def _stand_in(script: str, arguments: list[str]) -> None:
    """Have an agent forked and end as it ends; or become the interpreter."""
    request = {"circumstances": _circumstances(), "arguments": arguments[3:], "directory": os.getcwd()}
    request["environment"] = dict(os.environ)
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as importer:
        importer.connect(os.environ[ADDRESS])
        for number in _PASSED_ON:
            signal.signal(number, lambda n, _: importer.send(str(int(n)).encode()))
        socket.send_fds(importer, [json.dumps(request).encode()], [0, 1, 2])
        importer.settimeout(_LOADED)
        if importer.recv(_ANSWER_LIMIT) == _FORKED:
            importer.settimeout(None)  # as long as the agent lives
            for fd in (0, 1, 2):
                os.close(fd)  # the agent's alone, so that whoever reads them sees their end
            _end_like(int(importer.recv(_ANSWER_LIMIT) or -signal.SIGKILL))
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [script, *arguments])


def _end_like(code: int) -> None:
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


class _ForkedAgent:
    """An agent that the importer has forked, and the connection to its stand-in."""

    def __init__(self, pid: int, connection: socket.socket):
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.connection = connection


class _Importer:
    """Imports, then forks agents. It has one thread, so that what it forks is sound."""

    def __init__(self, address: str):
        self._circumstances = _circumstances()
        self.added_variables: dict[str, str] = {}  # By the imports, and for them.
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)

    def load(self) -> None:
        import gc
        import importlib

        from jdist.agent.processes.starter import PRELOAD_ENVIRONMENT, preloaded_modules

        before = dict(os.environ)
        for name, value in PRELOAD_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        gc.disable()
        for module in ("jdist.__main__", "jdist.agent.main", *preloaded_modules()):
            importlib.import_module(module)
        gc.enable()
        gc.collect()
        gc.freeze()
        self.added_variables = {k: v for k, v in os.environ.items() if k not in before}

    def serve(self) -> list[str] | None:
        """Fork on request. Returns in an agent, with its arguments; and when the test run has ended, with None."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._answer)
        self._selector.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return None
                if key.data == self._answer:
                    arguments = self._answer()
                    if arguments is not None:
                        return arguments
                elif key.fd == key.data.pidfd:
                    self._report_end(key.data)
                elif key.fd in self._selector.get_map():
                    self._pass_on(key.data)

    def _answer(self) -> list[str] | None:
        connection, _ = self._listener.accept()
        connection.settimeout(_ANSWER)
        data, fds = b"", []
        with contextlib.suppress(OSError):
            data, fds, _, _ = socket.recv_fds(connection, _REQUEST_LIMIT, 3)
        if not data:  # the stand-in has been killed
            connection.close()
            return None
        request = json.loads(data)
        if request["circumstances"] != self._circumstances:
            with contextlib.suppress(OSError):
                connection.send(_DECLINED)
            connection.close()
        elif pid := os.fork():
            agent = _ForkedAgent(pid, connection)
            self._selector.register(connection, selectors.EVENT_READ, agent)
            self._selector.register(agent.pidfd, selectors.EVENT_READ, agent)
            with contextlib.suppress(OSError):  # `_pass_on` hears of the stand-in's end
                connection.send(_FORKED)
        else:
            connection.close()
            self._become_agent(fds, request["directory"], request["environment"])
            return list(request["arguments"])
        for fd in fds:
            os.close(fd)
        return None

    def _become_agent(self, fds: list[int], directory: str, environment: dict[str, str]) -> None:
        """In the child: have the descriptors, the directory and the variables of whoever asked, and no others."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd:
                os.close(key.fd)
        self._selector.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            old = getattr(sys, name)  # it believes in what was at the descriptor, a file perhaps where a pipe is now
            buffering = -1 if mode == "r" else 1
            new = open(old.fileno(), mode, buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
        os.setsid()
        os.chdir(directory)
        multiprocessing.process.ORIGINAL_DIR = directory  # what "" in sys.path means to processes that it spawns
        os.environ.clear()
        os.environ.update(environment)

    def _report_end(self, agent: _ForkedAgent) -> None:
        _, status = os.waitpid(agent.pid, 0)
        with contextlib.suppress(OSError):  # the stand-in was killed
            agent.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        with contextlib.suppress(KeyError):
            self._selector.unregister(agent.connection)
        agent.connection.close()
        self._selector.unregister(agent.pidfd)
        os.close(agent.pidfd)

    def _pass_on(self, agent: _ForkedAgent) -> None:
        """Pass a signal on to the agent; kill it if its stand-in has ended."""
        number = b""
        with contextlib.suppress(OSError):
            number = agent.connection.recv(_ANSWER_LIMIT)
        if not number:
            self._selector.unregister(agent.connection)
        os.kill(agent.pid, int(number or signal.SIGKILL))  # it is there until `_report_end` has waited for it


def fork_nodes() -> Callable[[], object]:
    """Be the importer until the test run ends; returns what is to be called, also in each process that is forked."""
    if not sys.argv[2]:  # the test run has no seed, and so have those who ask for agents
        del os.environ[_SEED]
    importer = _Importer(os.environ[ADDRESS])
    importer.load()
    joining = importer.serve()
    if joining is None:
        return lambda: None
    if "--no-fork" not in joining and not _fork_forkserver(importer.added_variables):
        from jdist.agent.processes import forkserver

        return forkserver.main
    from jdist.__main__ import main

    sys.argv = ["jdist", *joining]
    return main


def _fork_forkserver(variables: dict[str, str]) -> int:
    """Fork this agent's forkserver, which the agent takes where it would start one. Returns 0 in the forkserver."""
    from jdist.agent.processes.starter import PreloadedProcess, preloaded_modules

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        if not theirs.recv(1):
            os._exit(0)  # the agent has ended without it
        os.environ.update({**variables, **os.environ})
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.argv = ["", "server", str(theirs.detach()), str(agent), *preloaded_modules()]
        return 0
    theirs.close()
    spawn = PreloadedProcess.spawn

    def take(role: str, *more: str) -> PreloadedProcess:
        PreloadedProcess.spawn = spawn
        if role == "server" and not more:
            ours.send(b".")
            return PreloadedProcess(ours, pid)
        ours.close()
        return spawn(role, *more)

    PreloadedProcess.spawn = take
    return pid


if __name__ == "__main__":
    _, role, script, *arguments = sys.argv
    _stand_in(script, arguments)
