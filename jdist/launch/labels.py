"""Labels: what an engine calls all that it holds for one cluster.

A cluster's name is its own among the clusters of one user on one host only; an engine serves many users and hosts. So
the label tells those apart, too, and it follows from the plan alone: any client on the controller's host finds what
another one has started.
"""

from __future__ import annotations

import hashlib
import re
import socket

from jdist.launch.base import Plan

_WORDS = 24
"""Characters of the cluster's own name that are kept: an engine adds to a label what it makes of it."""


def label_of(plan: Plan) -> str:
    """Lower-case letters, digits and ``-``, at most 39 characters, such as ``jdist-c1-5d41402a``."""
    where = f"{socket.gethostname()}\0{plan.log}\0{plan.settings.name}"
    own = re.sub(r"[^a-z0-9]+", "-", plan.settings.name.lower())[:_WORDS].strip("-")
    digest = hashlib.sha256(where.encode()).hexdigest()[:8]
    return "-".join(filter(None, ("jdist", own, digest)))
