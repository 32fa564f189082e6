"""Environment: what of an agent's environment its node's workers do not get to see. The one list of it.

The agent takes it out of its own before it starts anything, so that nothing which is started from it has it either.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SECRETS = (
    "JUPYTERHUB_*",  # the server's API token among them
    "JPY_*",
    "JUPYTER_TOKEN",
    "CONFIGPROXY_AUTH_TOKEN",
    "BINDER_*",
    "DASK_GATEWAY__AUTH__*",
    "RAY_AUTH_TOKEN",
)
"""What lets its holder act in a user's name at the service that started the notebook, and is nothing that a user set.

A user's own (``HF_TOKEN``, ``AWS_*``, …) stay: what cells do may need them.
"""

LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "TORCHELASTIC_*",  # TORCHELASTIC_USE_AGENT_STORE would have init_process_group look for torchrun's store
    *("OMPI_*", "PMIX_*", "PRTE_*", "ORTE_*", "OPAL_*"),
    *("PMI_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_*", "HYDRA_*"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_*", "SLURM_STEPID", "SLURM_TASK_PID", "SLURM_GTIDS"),
    *("SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_DISTRIBUTION"),
)
"""What a launcher told the agent of a place among its tasks. A rank's place in the world is another, and libraries that
look for either would be misled. Slurm's words on the job as a whole (``SLURM_JOB_*``, …) stay."""

_TORCHRUNS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""What torchrun sets by itself: with it NCCL's watchdog would end a rank whose collective is interrupted."""


def strip(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Take both out; what the launchers had said, for the one backend that needs to find its launcher again."""
    if "TORCHELASTIC_RUN_ID" in environ:
        for name, value in _TORCHRUNS.items():
            if environ.get(name) == value:
                del environ[name]
    for name in _matching(environ, SECRETS):
        del environ[name]
    return {name: environ.pop(name) for name in _matching(environ, LAUNCHERS)}


def _matching(environ: MutableMapping[str, str], patterns: tuple[str, ...]) -> list[str]:
    names = {p for p in patterns if not p.endswith("*")}
    prefixes = tuple(p[:-1] for p in patterns if p.endswith("*"))
    return [name for name in environ if name in names or name.startswith(prefixes)]
