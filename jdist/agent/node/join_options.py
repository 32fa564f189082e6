"""Wish: what an agent was started with that has a say in its place: by a command line, or by a launcher."""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from jdist.agent.node.facts import count_gpus
from jdist.agent.node.tasks import own_gpu, read_task
from jdist.core import environment
from jdist.core.messages.membership import LauncherTask


class Wish(Struct, frozen=True):
    """What the agent asks for."""

    nproc: int = 0
    """Ranks on this node; 0: as the controller says."""
    node_rank: int = -1
    """-1: any."""
    task: LauncherTask | None = None
    """If a launcher has started it together with others."""
    launcher: dict[str, str] = {}
    """The variables by which a process finds that launcher again."""


def read_wish(nproc: int, node_rank: int) -> Wish:
    """The command line's words, or else the launcher's, whose variables are taken out of this process's environment.

    To be called before anything is started that would inherit them.
    """
    task = read_task(os.environ) if node_rank < 0 else None
    if task is not None:
        task = msgspec.structs.replace(task, gpu=own_gpu(task, count_gpus(), os.environ))
    return Wish(nproc, node_rank, task, environment.strip(os.environ))
