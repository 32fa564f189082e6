"""AsyncCluster: a cluster as a client sees it, in coroutines. ``blocking.Cluster`` is the same, blocking.

Its parts, each on the one before it or on the attachment: ``attachment`` (the link and the facts), ``cells`` (with the
runs ``underway``), ``life``, ``membership``, ``code``; ``variables`` on cells; ``groups``, ``questions``, ``doctor``.
"""

from __future__ import annotations

from jdist.client.cluster.attachment import Ranks
from jdist.client.cluster.code import Code
from jdist.client.cluster.doctor import Doctor
from jdist.client.cluster.groups import Groups
from jdist.client.cluster.questions import Questions
from jdist.client.cluster.variables import Variables

__all__ = ["AsyncCluster", "Ranks"]


class AsyncCluster(Code, Variables, Groups, Questions, Doctor):
    """An attached cluster. Make one with :meth:`start` or :meth:`attach`; ``async with`` stops it at the end."""
