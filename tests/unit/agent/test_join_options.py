"""Tasks: each launcher's own words are read; a shell, a batch script and a rank of ours are nobody's task."""

from __future__ import annotations

import pytest

from jdist.agent.node import own_gpu
from jdist.core.launchers import WORKER, read_task
from jdist.core.messages.membership import LauncherTask

# As seen in the processes that each of them started: two hosts of two tasks, the third task.
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "j1",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "bed1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "PMIX_RANK": "2",
}
SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "bed[1-2]",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
PLAIN = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
BATCH_SCRIPT = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_ID": "7",
}


@pytest.mark.parametrize(
    ("environ", "task"),
    [
        (TORCHRUN, LauncherTask("torchrun", 2, 4, 0, 2, 1)),
        (OPENMPI, LauncherTask("mpirun", 2, 4, 0, 2)),
        (SRUN, LauncherTask("srun", 2, 4, 0, 2, 1)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "3,1"}, LauncherTask("srun", 2, 4, 0, 1, 1)),
        (MPICH, LauncherTask("mpiexec", 2, 4, 0, 2)),
        (PLAIN, LauncherTask("the launcher", 2, 4)),
        (SRUN | TORCHRUN, LauncherTask("torchrun", 2, 4, 0, 2, 1)),
        (BATCH_SCRIPT | OPENMPI, LauncherTask("mpirun", 2, 4, 0, 2)),
        (SRUN | MPICH | {"PMI_SIZE": "9"}, LauncherTask("srun", 2, 4, 0, 2, 1)),
    ],
)
def test_a_launchers_words_are_read(environ: dict[str, str], task: LauncherTask) -> None:
    assert read_task(environ) == task


@pytest.mark.parametrize(
    "environ",
    [
        {},
        BATCH_SCRIPT,
        SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},  # a shell inside salloc
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "2", "WORLD_SIZE": "4"},  # left over in somebody's shell: nobody could meet by that
        PLAIN | {"RANK": "4"},
        PLAIN | {"RANK": "two"},
        PLAIN | OPENMPI | {WORKER: "1"},  # a terminal, or another jdist, inside a rank
    ],
)
def test_a_process_of_its_own_is_no_task(environ: dict[str, str]) -> None:
    assert read_task(environ) is None


@pytest.mark.parametrize(
    ("task", "gpus", "environ", "gpu"),
    [
        (LauncherTask("mpirun", 3, 4, 1, 2), 0, {}, -1),
        (LauncherTask("mpirun", 3, 4, 1, 2), 2, {}, 1),
        (LauncherTask("mpirun", 3, 4, 1, 2), 1, {}, -1),
        (LauncherTask("mpirun", 3, 4, 1, 2), 1, {"CUDA_VISIBLE_DEVICES": "1"}, 0),
        (LauncherTask("srun", 3, 4, 1, 2), 1, {"CUDA_VISIBLE_DEVICES": "0"}, -1),
        (LauncherTask("srun", 3, 4, 1, 2), 1, {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_PER_TASK": "1"}, 0),
        (LauncherTask("srun", 3, 4, 3, 4), 2, {"SLURM_GPUS_PER_TASK": "2"}, 1),
        (LauncherTask("srun", 3, 4, 0, 1), 8, {}, 0),
        (LauncherTask("the launcher", 3, 4), 1, {}, 0),
    ],
)
def test_the_gpu_of_a_task(task: LauncherTask, gpus: int, environ: dict[str, str], gpu: int) -> None:
    assert own_gpu(task, gpus, environ) == gpu
