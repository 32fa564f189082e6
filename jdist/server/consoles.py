"""Consoles: how a terminal of this server gets into a rank, where it can."""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import sys


def command_here(hostname: str, connection_file: str, program: str = "jupyter_console") -> tuple[str, str]:
    """``(command, "")`` for a terminal of this server, or ``("", why)`` where that cannot reach the rank.

    A rank's kernel listens on sockets of its node only, so its ``connection_file`` has to be this machine's. The key
    stays in that file: the command names it. The interpreter is named as well, since a terminal's shell may find
    another one.
    """
    if hostname != socket.gethostname() or not os.access(connection_file, os.R_OK):
        return "", f"the rank is on {hostname}, and this server on {socket.gethostname()}"
    if importlib.util.find_spec(program) is None:
        return "", "jupyter_console is not installed beside the Jupyter server: pip install jupyter-console"
    return shlex.join([sys.executable, "-m", program, "--existing", connection_file]), ""
