"""Tasks: what a launcher that starts several processes tells each of them about its place among them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jdist.core.messages.membership import LauncherTask

WORKER = "JDIST_WORKER"
"""Set in every worker. What else stands in a worker's environment is its own place in the world, and no launcher's."""

_SLURM_GIVES = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")
"""Where Slurm has been told to give each task its own; CUDA_VISIBLE_DEVICES it sets in any case."""
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")

Environment = Mapping[str, str]


def read_task(environ: Environment) -> LauncherTask | None:
    """This process's place among those of its launcher; None if it was started alone, or by hand.

    Of launchers inside each other, such as torchrun in a Slurm job, the innermost counts.
    """
    if WORKER in environ:
        return None
    for read in (_torchrun, _openmpi, _slurm, _pmi, _plain):
        task = read(environ)
        if task is not None:
            return task if task.size > 1 and 0 <= task.rank < task.size else None
    return None


def _torchrun(environ: Environment) -> LauncherTask | None:
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    return _of("torchrun", environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def _openmpi(environ: Environment) -> LauncherTask | None:
    names = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    return _of("mpirun", environ, *names)


def _slurm(environ: Environment) -> LauncherTask | None:
    """Of a step that ``srun`` started; a batch script and an interactive shell have the job's numbers, but no step."""
    task = _of("srun", environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID")
    if task is None:
        return None
    counts = _expand(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    local_size = counts[task.node_rank] if 0 <= task.node_rank < len(counts) else 0
    return LauncherTask(task.launcher, task.rank, task.size, task.local_rank, local_size, task.node_rank)


def _pmi(environ: Environment) -> LauncherTask | None:
    """MPICH's mpiexec, and what follows its manners."""
    return _of("mpiexec", environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _plain(environ: Environment) -> LauncherTask | None:
    """What ``init_method="env://"`` reads, set by whatever set it."""
    if not {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return None
    return _of("the launcher", environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def _of(launcher: str, environ: Environment, *names: str) -> LauncherTask | None:
    """The task that these tell of: rank, size, local rank, local size, node rank. The first two are needed."""
    values = [environ.get(name, "") for name in names]
    if not all(v.isdecimal() for v in values[:2]):
        return None
    local_rank, local_size, node_rank = (int(v) if v.isdecimal() else -1 for v in (values[2:] + [""] * 3)[:3])
    return LauncherTask(launcher, int(values[0]), int(values[1]), local_rank, max(local_size, 0), node_rank)


def _expand(text: str) -> list[int]:
    """``"2(x3),1"`` → ``[2, 2, 2, 1]``."""
    return [int(m[1]) for m in _REPEATED.finditer(text) for _ in range(int(m[2] or 1))]


def own_gpu(task: LauncherTask, gpus: int, environ: Environment) -> int:
    """Which of the ``gpus`` that it sees is a task's own, as one rank; -1: none, or it shares them with other tasks.

    Where each task sees all of its host's, its local rank says; where there are fewer than tasks, they are its own only
    if they were given to it.
    """
    if not gpus:
        return -1
    if task.local_rank < 0 or task.local_size <= 1:
        return 0
    if gpus >= task.local_size:
        return task.local_rank
    giving = _SLURM_GIVES if task.launcher == "srun" else ("CUDA_VISIBLE_DEVICES",)
    return task.local_rank % gpus if any(map(environ.get, giving)) else -1
