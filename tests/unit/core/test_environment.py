"""Environment: neither secrets of the notebook's service nor a launcher's variables travel to workers."""

from __future__ import annotations

from jdist.core.launchers import LAUNCHER_VARIABLES, SECRETS, strip, without

KEPT = {
    "HOME": "/home/u",
    "PATH": "/bin",
    "HF_TOKEN": "the user's own",
    "JUPYTER_RUNTIME_DIR": "/run",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "a,b",
    "SLURM_CPUS_PER_TASK": "2",
    "OMP_NUM_THREADS": "4",
    "GLOO_SOCKET_IFNAME": "eth1",
    "RANKING": "1",
}


def test_secrets_are_taken_out() -> None:
    environ = {**KEPT, "JUPYTERHUB_API_TOKEN": "x", "JUPYTERHUB_USER": "u", "JPY_API_TOKEN": "x", "JUPYTER_TOKEN": "x"}
    assert strip(environ) == {}
    assert environ == KEPT


def test_a_launchers_words_are_taken_out_and_handed_over() -> None:
    words = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_MCA_ess": "x",
        "PMIX_RANK": "1",
        "PMI_RANK": "1",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_ID": "0",
    }
    environ = KEPT | words
    assert strip(environ) == words
    assert environ == KEPT


def test_there_is_one_list_for_all_launchers() -> None:
    """Every variable that any floor ever removed on its own is on the lists."""
    secrets = ["JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN", "JUPYTER_TOKEN", "CONFIGPROXY_AUTH_TOKEN", "BINDER_REPO_URL"]
    secrets += ["DASK_GATEWAY__AUTH__TYPE", "RAY_AUTH_TOKEN"]
    slurm = "STEP_ID STEPID TASK_PID TASKS_PER_NODE NTASKS NTASKS_PER_NODE NPROCS PROCID LOCALID NODEID GTIDS"
    slurm += " SRUN_COMM_PORT LAUNCH_NODE_IPADDR CPU_BIND CPU_BIND_LIST LABELIO NNODES NODELIST PRIO_PROCESS UMASK"
    places = [f"SLURM_{name}" for name in slurm.split()] + ["PMI_RANK", "PMIX_RANK", "OMPI_MCA_x", "PRTE_x", "ORTE_x"]
    places += ["HYDRA_x", "HYDI_x", "MPI_LOCALRANKID", "I_MPI_x", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"]
    assert without(dict.fromkeys(secrets, "x") | KEPT, SECRETS) == KEPT
    assert without(dict.fromkeys(places, "x") | KEPT, LAUNCHER_VARIABLES) == KEPT


def test_what_torchrun_sets_by_itself_goes_and_what_a_user_sets_stays() -> None:
    handling = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    environ = handling | {"TORCHELASTIC_RUN_ID": "j"}
    strip(environ)
    assert environ == {}
    for own in (handling, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}):
        environ = dict(own)
        strip(environ)
        assert environ == own
