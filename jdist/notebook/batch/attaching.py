"""Attaching: how a user attaches to a job's cluster, from this host or another, and how to end it."""

import socket

from jdist.client.cluster import Cluster


def how_to_attach(cluster: Cluster) -> list[str]:
    """What to type, and where."""
    attach, stop, host = f"%dist attach {cluster.name}", f"jdist stop {cluster.name}", socket.gethostname()
    where = f"in a notebook on {host}, or on any host with this home directory"
    if not cluster.asynchronous.link.connection.public_port:
        where = f"in a notebook on {host} (other hosts can attach only with --bind '*')"
    width = max(len(attach), len(stop))
    return [f"→ {attach:<{width}}  {where}", f"→ {stop:<{width}}  in a shell"]
