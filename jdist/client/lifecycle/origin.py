"""Origin: the notebook whose kernel this process is."""

import os
import socket
import sys

from jdist.core.launchers import WORKER
from jdist.core.messages.status import Origin
from jdist.wire.processes import start_time

OWNERS = ("notebook", "python")  # Kinds of the clients that a notebook uses its clusters by.


def this_notebook() -> Origin | None:
    """The notebook; None if this process is no notebook's kernel."""
    module = sys.modules.get("ipykernel.kernelapp")
    if module is None or WORKER in os.environ or not module.IPKernelApp.initialized():
        return None
    names = getattr(module.IPKernelApp.instance().shell, "user_ns", {})
    # The Jupyter server sets the variable, VS Code the name.
    notebook = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__", "")
    visited = names.get("_dh") or [os.getcwd()]  # the directory may have been changed since the kernel began
    pid = os.getpid()
    return Origin(str(notebook), str(visited[0]), socket.gethostname(), pid, start_time(pid))
