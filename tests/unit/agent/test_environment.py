"""Environment: workers see neither what the Hub trusted the notebook with nor another launcher's numbers."""

from __future__ import annotations

from jdist.agent.node.environment import strip

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


def test_what_torchrun_sets_by_itself_goes_and_what_a_user_sets_stays() -> None:
    handling = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    environ = handling | {"TORCHELASTIC_RUN_ID": "j"}
    strip(environ)
    assert environ == {}
    for own in (handling, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}):
        environ = dict(own)
        strip(environ)
        assert environ == own
