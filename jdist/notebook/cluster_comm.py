"""ClusterComm: tells the page of a notebook which cluster the notebook uses, over a comm of Jupyter."""

from typing import Any

from comm import create_comm
from comm.base_comm import BaseComm

from jdist.notebook.session import Session

TARGET = "jdist"  # The same in labextension/src/toolbar/attached.ts.


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
            self._has_told = True
            self._comm = create_comm(target_name=TARGET, data=told)
            self._comm.on_msg(self._answer)
            self._comm.on_close(self._forget)

    def _answer(self, _: Any) -> None:
        """A page was loaded, and asks; on a thread of a subshell, where the page uses those."""
        self._tell()

    def _forget(self, _: Any) -> None:
        self._comm = None
