"""Launcher task: the place of this process among those that a launcher such as mpirun has started together."""

import re
from collections.abc import Mapping

from jdist.core.messages.membership import LauncherTask

WORKER = "JDIST_WORKER"  # Set in every worker, whose environment holds its own place in the world and not a launcher's.

_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")

Environment = Mapping[str, str]

_ENV = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")  # Those of torch's own launcher.

# Launchers, innermost first: the variables that must be set, and those of rank, size, local rank, local size, node.
_LAUNCHERS: tuple[tuple[str, set[str], tuple[str, ...]], ...] = (
    ("torchrun", {"TORCHELASTIC_RUN_ID"}, _ENV),
    ("mpirun", set(), tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    # Only a step that srun started has these; a batch script and an interactive shell have the job's numbers.
    ("srun", set(), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID")),
    # MPICH's mpiexec and those that set the same variables.
    ("mpiexec", set(), ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
    # What ``init_method="env://"`` reads, whoever set it.
    ("the launcher", {"MASTER_ADDR", "MASTER_PORT"}, _ENV),
)


def read_task(environ: Environment) -> LauncherTask | None:
    """This process's place among those of its innermost launcher, such as torchrun in a Slurm job; None without one."""
    if WORKER in environ:
        return None
    for launcher, required, names in _LAUNCHERS:
        values = [environ.get(name, "") for name in names]
        if required <= environ.keys() and all(v.isdecimal() for v in values[:2]):
            numbers = [int(v) if v.isdecimal() else -1 for v in [*values, "", "", ""][:5]]
            rank, size, local_rank, local_size, node_rank = numbers
            if launcher == "srun":
                nodes = _REPEATED.finditer(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # "2(x3),1": 2, 2, 2, 1
                counts = [int(m[1]) for m in nodes for _ in range(int(m[2] or 1))]
                local_size = counts[node_rank] if 0 <= node_rank < len(counts) else 0
            task = LauncherTask(launcher, rank, size, local_rank, max(local_size, 0), node_rank)
            return task if size > 1 and rank < size else None
    return None
