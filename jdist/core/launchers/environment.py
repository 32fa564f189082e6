"""Environment variables that must not travel: a notebook service's secrets, and launchers' words to their tasks.

These are the only lists of both. Launchers remove the secrets before they start a program, and the agent removes both
from its own environment before it starts anything that would inherit them.
"""

from collections.abc import Mapping, MutableMapping

# Variables that let their holder act in a user's name at the service that started the notebook.
# Variables that users set themselves (`HF_TOKEN`, `AWS_*`, …) stay: cells may need them.
SECRETS = (
    "JUPYTERHUB_*",  # the server's API token among them
    "JPY_*",
    "JUPYTER_TOKEN",
    "CONFIGPROXY_AUTH_TOKEN",
    "BINDER_*",
    "DASK_GATEWAY__AUTH__*",
    "RAY_AUTH_TOKEN",
)

# Variables by which a launcher tells a process its place among the launcher's tasks.
# A rank's place in the world is another one, and libraries that read these variables would be misled. Slurm's variables
# about the job as a whole (`SLURM_JOB_*`, …) stay.
LAUNCHER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "TORCHELASTIC_*",  # TORCHELASTIC_USE_AGENT_STORE makes init_process_group look for torchrun's store
    *("OMPI_*", "PMIX_*", "PRTE_*", "ORTE_*", "OPAL_*"),
    *("PMI_*", "I_MPI_*", "MPI_LOCAL*", "HYDI_*", "HYDRA_*"),
    *("SLURM_STEP*", "SLURM_TASK*", "SLURM_NTASKS*", "SLURM_NPROCS*", "SLURM_PROCID*", "SLURM_LOCALID*"),
    *("SLURM_NODEID*", "SLURM_GTIDS*", "SLURM_SRUN*", "SLURM_LAUNCH*", "SLURM_CPU_BIND*", "SLURM_LABELIO*"),
    *("SLURM_NNODES*", "SLURM_NODELIST*", "SLURM_PRIO*", "SLURM_UMASK*", "SLURM_DISTRIBUTION"),
)

_SET_BY_TORCHRUN = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # NCCL's watchdog would end interrupted ranks.


def without(environ: Mapping[str, str], *lists: tuple[str, ...]) -> dict[str, str]:
    """A copy of ``environ`` without the variables that match one of the lists; ``*`` at the end matches any rest."""
    patterns = [pattern for patterns in lists for pattern in patterns]
    names = {p for p in patterns if not p.endswith("*")}
    prefixes = tuple(p[:-1] for p in patterns if p.endswith("*"))
    return {name: value for name, value in environ.items() if name not in names and not name.startswith(prefixes)}


def strip(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Remove secrets and launcher variables from ``environ``; return the latter, which ranks of an MPI backend need."""
    public = without(environ, SECRETS)
    kept = without(public, LAUNCHER_VARIABLES)
    launcher = {name: value for name, value in public.items() if name not in kept}
    if "TORCHELASTIC_RUN_ID" in launcher:
        kept = {name: value for name, value in kept.items() if _SET_BY_TORCHRUN.get(name) != value}
    for name in set(environ) - set(kept):
        del environ[name]
    return launcher
