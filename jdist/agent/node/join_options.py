"""Join options: rank count, node rank and launcher task, from the command line or the launcher's environment."""

import os

import msgspec
from msgspec import Struct

from jdist.agent.node.gpus import count_gpus
from jdist.core import launchers
from jdist.core.launchers import Environment, read_task
from jdist.core.messages.membership import LauncherTask

_SLURM_GIVES = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")  # Slurm assigned GPUs to single tasks.


class JoinOptions(Struct, frozen=True):
    """What the agent asks the controller for."""

    nproc: int = 0  # Ranks on this node; 0: as the controller decides.
    node_rank: int = -1  # -1: any.
    task: LauncherTask | None = None  # If a launcher has started the agent together with others.
    launcher: dict[str, str] = {}  # The variables by which a process finds that launcher again.


def read_join_options(nproc: int, node_rank: int) -> JoinOptions:
    """The command line's options, or else the launcher's, whose variables are removed before anything inherits them."""
    task = read_task(os.environ) if node_rank < 0 else None
    if task is not None:
        task = msgspec.structs.replace(task, gpu=own_gpu(task, count_gpus(), os.environ))
    return JoinOptions(nproc, node_rank, task, launchers.strip(os.environ))


def own_gpu(task: LauncherTask, gpus: int, environ: Environment) -> int:
    """Index of the task's own GPU among the ``gpus`` that it sees; -1: none, or it shares them with other tasks.

    Where each task sees all GPUs of its host, the local rank is the index. Where it sees fewer GPUs than the host has
    tasks, they are its own only if the launcher assigned them to it.
    """
    if not gpus:
        return -1
    if task.local_rank < 0 or task.local_size <= 1:
        return 0
    if gpus >= task.local_size:
        return task.local_rank
    giving = _SLURM_GIVES if task.launcher == "srun" else ("CUDA_VISIBLE_DEVICES",)
    return task.local_rank % gpus if any(map(environ.get, giving)) else -1
