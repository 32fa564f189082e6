"""Attaching: how a user attaches to a job's cluster, from this host or another."""

import socket

from jdist.client.blocking import Cluster


def how_to_attach(cluster: Cluster) -> list[str]:
    """What to type, and where."""
    host = socket.gethostname()
    if not cluster.asynchronous.link.connection.public_port:
        return [
            f"→ %dist attach {cluster.name}   in a notebook on {host} (other hosts can attach only with --bind '*')"
        ]
    return [f"→ %dist attach {cluster.name}   in a notebook on {host}, or on any host with this home directory"]
