"""A world with NCCL on this machine's GPUs, however many there are.

NCCL refuses two ranks on one GPU of a host. It tells hosts apart by ``NCCL_HOSTID``, so on a machine with one GPU two
nodes are started there that have one each, and the ranks reach each other through sockets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from jdist.launch.join import LocalLauncher

NCCL = "cpu:gloo,cuda:nccl"
_SOCKETS = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket"}


@contextlib.contextmanager
def nccl_options() -> Iterator[dict[str, Any]]:
    """Options of a start that has a rank on each GPU, or two ranks on the only one, for starts meanwhile."""
    if torch.cuda.device_count() != 1:
        yield {"nproc_per_node": torch.cuda.device_count(), "backend": NCCL}
        return
    command = LocalLauncher.command

    def told(launcher: LocalLauncher, node_rank: int) -> list[str]:
        return ["env", f"NCCL_HOSTID=node{node_rank}", *command(launcher, node_rank)]

    with mock.patch.object(LocalLauncher, "command", told):
        yield {"nnodes": 2, "nproc_per_node": 1, "backend": NCCL, "env": _SOCKETS}
