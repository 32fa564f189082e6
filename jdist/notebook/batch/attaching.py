"""Attaching: how a user gets at a job's cluster, from this host and from others."""

import socket

from jdist.client.blocking import Cluster


def how_to_attach(cluster: Cluster) -> list[str]:
    """What is typed, and where."""
    host = socket.gethostname()
    if not cluster.asynchronous.link.connection.public_port:
        return [
            f"→ %dist attach {cluster.name}   in a notebook on {host}; from other hosts, if started with --bind '*'"
        ]
    return [f"→ %dist attach {cluster.name}   in a notebook on {host}, or on any host with this home directory"]
