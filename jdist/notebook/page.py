"""Page: what the page of a notebook is told and shown: which cluster the notebook uses, and a panel.

Neither ipywidgets nor the package for comms is imported before it is needed.
"""

import json
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from jupyter_core.paths import jupyter_path

from jdist.client.cluster import Cluster
from jdist.core import __file__ as core_file
from jdist.core import __version__
from jdist.core.errors import UsageError
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed

if TYPE_CHECKING:
    from comm.base_comm import BaseComm

    from jdist.notebook.panel import Panel

TARGET = "jdist"  # The same in labextension/src/toolbar/attached.ts.
_SESSION = "JPY_SESSION_NAME"  # A Jupyter server sets it for the kernels of its notebooks.


class ClusterComm:
    """Sends ``{"cluster": NAME, "id": ID, "is_auto": BOOL}``, or None for name and id, when another cluster is used,
    the one in use has ended, or auto is turned on or off, and when a page asks.

    The comm is opened when a cluster is used for the first time. A page without jdist's extension knows no such target
    and answers by closing the comm, as Jupyter's protocol demands; it is opened again for the next change.
    """

    def __init__(self, session: Session):
        self._session = session
        self._comm: BaseComm | None = None
        self._has_told = False
        self._unfollows = (session.follow(lambda _: self._tell()), session.follow_state(self._tell))

    def close(self) -> None:
        for unfollow in self._unfollows:
            unfollow()
        if self._comm is not None:
            self._comm.close()
            self._comm = None

    def _tell(self) -> None:
        cluster = self._session.usable
        name, cluster_id = (None, None) if cluster is None else (cluster.name, cluster.id)
        told = {"cluster": name, "id": cluster_id, "is_auto": self._session.is_auto}
        if self._comm is not None:
            self._comm.send(told)
        elif cluster is not None or self._has_told:
            from comm import create_comm  # only here: scripts have no page

            self._has_told = True
            self._comm = create_comm(target_name=TARGET, data=told)
            self._comm.on_msg(self._answer)
            self._comm.on_close(self._forget)

    def _answer(self, _: Any) -> None:
        """A page was loaded, and asks; on a thread of a subshell, where the page uses those."""
        self._tell()

    def _forget(self, _: Any) -> None:
        self._comm = None


def panel(cluster: Cluster) -> "Panel":
    """A panel of ``cluster`` for the notebook that this is called in; as a cell's last expression it is shown.

    Ranks, groups, verdicts, and buttons that interrupt, restart, pause and continue. Raises UsageError outside a
    notebook.
    """
    return open_panel(cluster, None)


Cluster.panel = panel  # type: ignore[assignment]


def open_panel(cluster: Cluster | None, session: Session | None) -> "Panel":
    """A panel; with a session it shows the cluster that the session uses."""
    try:
        from jdist.notebook import panel as widgets
    except ImportError as e:
        raise UsageError(
            f"the panel needs ipywidgets, which this kernel's environment lacks ({e}): pip install 'ipywidgets>=8.1'"
        ) from e
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        raise UsageError(
            f"a panel needs a notebook: there is no kernel here; {typed('status')} shows the cluster as it is now"
        )
    return widgets.Panel(kernel, cluster, session)


def missing_extension() -> str:
    """What to say in a kernel beside which JupyterLab is installed without jdist's extension; empty elsewhere.

    Only a kernel that a Jupyter server has started for a notebook has the page of one: in a program that a notebook has
    started, such as papermill, the variable is inherited.
    """
    if _SESSION not in os.environ or find_spec("jupyterlab") is None:
        return ""
    if any(os.path.exists(f"{folder}/jdist/package.json") for folder in jupyter_path("labextensions")):
        return ""
    try:
        if _SESSION in psutil.Process(os.getppid()).environ():
            return ""
    except psutil.Error:
        return ""
    what = f"JupyterLab in {sys.prefix} lacks jdist's extension, which has the panel"
    return f"note: {what}; with npm on the PATH, this installs it: {_install_again()}"


def _install_again() -> str:
    """The line that installs jdist again, from where it came."""
    try:
        origin = json.loads(distribution("jdist").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        tree = shlex.quote(str(Path(core_file).parents[2]))
        return f"pip install --no-deps -e {tree} && jupyter-builder develop --overwrite {tree}"
    source = origin.get("url", f"jdist=={__version__}")
    if vcs := origin.get("vcs_info"):
        source = f"{vcs['vcs']}+{source}@{vcs['commit_id']}"
    return f"pip install --force-reinstall --no-deps --no-cache-dir {shlex.quote(source)}"
