"""ClusterComm: tells the page of a notebook which cluster the notebook uses, over a comm of Jupyter."""

from typing import Any

from comm import create_comm
from comm.base_comm import BaseComm

from jdist.client.blocking import Cluster
from jdist.notebook.session import Session

TARGET = "jdist"  # The same in labextension/src/toolbar/attached.ts.


class ClusterComm:
    """Sends ``{"cluster": NAME}``, or None for the name, whenever the session's cluster changes and when a page asks.

    The comm is opened when a cluster is used for the first time. A page without jdist's extension knows no such target
    and answers by closing the comm, as Jupyter's protocol demands; it is opened again for the next cluster.
    """

    def __init__(self, session: Session):
        self._session = session
        self._comm: BaseComm | None = None
        self._unfollow = session.follow(self._tell)

    def close(self) -> None:
        self._unfollow()
        if self._comm is not None:
            self._comm.close()
            self._comm = None

    def _tell(self, cluster: Cluster | None) -> None:
        told = {"cluster": None if cluster is None else cluster.name}
        if self._comm is not None:
            self._comm.send(told)
        elif cluster is not None:
            self._comm = create_comm(target_name=TARGET, data=told)
            self._comm.on_msg(self._answer)
            self._comm.on_close(self._forget)

    def _answer(self, _: Any) -> None:
        """A page was loaded, and asks; on a thread of a subshell, where the page uses those."""
        self._tell(self._session.current)

    def _forget(self, _: Any) -> None:
        self._comm = None
