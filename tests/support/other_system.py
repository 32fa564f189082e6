"""A client as on macOS or Windows: what only Linux has is taken away before jdist is imported. Prints what it found.

Other packages have their own ways on those systems: they are imported beforehand, and psutil may still read /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import sysconfig
import time
from importlib.metadata import entry_points
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell

LIBRARIES = (
    "asyncssh",
    "ipywidgets",
    "jupyter_server.extension.application",
    "psutil",
    "watchfiles",
    "zmq.auth.asyncio",
)
ONLY_LINUX: dict[Any, tuple[str, ...]] = {
    os: ("memfd_create", "pidfd_open", "splice", "eventfd", "sched_getaffinity", "posix_fallocate", "setns", "unshare"),
    signal: ("pidfd_send_signal",),
    socket: ("SO_PEERCRED", "SO_BINDTODEVICE", "TCP_USER_TIMEOUT", "AF_NETLINK"),
    select: ("epoll",),
    ctypes: ("CDLL",),
}
NOT_ON_WINDOWS: dict[Any, tuple[str, ...]] = {
    os: (
        *("getuid", "geteuid", "getgid", "getegid", "getpgid", "getsid", "killpg", "fork", "uname", "nice", "mkfifo"),
        *("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "pwrite", "pread", "fchmod"),
    ),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "pthread_kill", "pthread_sigmask"),
    socket: ("AF_UNIX", "recv_fds", "send_fds"),
    select: ("poll",),
}
MODULES_NOT_ON_WINDOWS = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")


def take_away(system: str) -> None:
    """Make Linux look like another system to jdist."""
    for name in LIBRARIES:
        importlib.import_module(name)
    sysconfig.get_paths()  # it keeps them
    selectors.DefaultSelector = selectors.SelectSelector if system == "win32" else selectors.PollSelector
    socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)  # Windows has another one
    for module, names in [*ONLY_LINUX.items(), *(NOT_ON_WINDOWS.items() if system == "win32" else ())]:
        for name in names:
            with contextlib.suppress(AttributeError):  # this Linux lacks it, too
                delattr(module, name)
    if system == "win32":
        sys.modules.update(dict.fromkeys(MODULES_NOT_ON_WINDOWS))  # to import one of them is an ImportError
    for name in ("stat", "lstat", "readlink", "access"):
        setattr(os, name, refusing(getattr(os, name)))
    sys.addaudithook(refuse)
    sys.platform = system


def refusing(function: Any) -> Any:
    def call(path: Any, *args: Any, **options: Any) -> Any:
        refuse("open", (path,))
        return function(path, *args, **options)

    return call


def refuse(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: no file is there below /proc and /dev/shm, except for psutil."""
    if event not in {"open", "os.listdir", "os.scandir"} or not isinstance(args[0], str | os.PathLike):
        return
    if f"{os.fspath(args[0])}/".startswith(("/proc/", "/dev/shm/")) and not is_for_psutil():
        raise FileNotFoundError(2, "No such file or directory", args[0])


def is_for_psutil() -> bool:
    frame: Any = sys._getframe()
    while frame is not None and "/jdist/" not in frame.f_code.co_filename:
        if "/psutil/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    system, name = sys.argv[1:]
    take_away(system)
    found: dict[str, Any] = {}
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "jdist")
    shell.run_line_magic("dist", f"attach {name}")
    found["cell"] = shell.run_cell("%%dist\nbig = torch.arange(1 << 20) + rank").success
    shell.run_line_magic("dist", "status")
    shell.run_line_magic("dist", "detach")
    import jdist
    from jdist import commands

    found["command"] = commands.main(["status", "--cluster", name])
    cluster = jdist.attach(name)
    found["port"] = cluster.asynchronous.link.connection.control_port
    found["pulled"] = {rank: [value.nbytes, value.sum().item()] for rank, value in cluster.pull("big").items()}
    cluster.push(mine=torch.arange(1 << 20))
    found["pushed"] = cluster.run("mine.nbytes, mine.sum().item()").values
    run = cluster.run("import time\nwhile True: time.sleep(0.01)", background=True)
    while not all("while True" in cluster.stack(rank) for rank in (0, 1)):
        time.sleep(0.05)
    cluster.interrupt()
    run.wait(60)
    found["interrupted"] = {rank: outcome.kind for rank, outcome in run.outcomes.items()}
    found["states"] = [each.state for each in cluster.status().ranks]
    try:
        jdist.start(1)
    except jdist.UsageError as e:
        found["start"] = str(e)
    cluster.detach()
    for module in ("notebook.batch.job", "notebook.panel", "server.extension"):
        importlib.import_module(f"jdist.{module}")
    found["modules"] = [each for each in sys.modules if each.split(".")[0] == "jdist"]
    for launcher in entry_points(group="jdist.launchers"):
        launcher.load()  # JupyterLab's dialog lists the options of all
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
