"""Attaching: how a user gets at a job's cluster, from this host and from others."""

import socket

from jdist.client.blocking import Cluster


def how_to_attach(cluster: Cluster) -> list[str]:
    """What is typed, a line for each way."""
    return [f"→ %dist attach {cluster.name}   in a notebook on {socket.gethostname()}"]
