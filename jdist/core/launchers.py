"""Read what launchers tell their tasks, and list the variables that must not travel. Pure.

Two kinds of environment variables must not reach ranks: a notebook service's secrets, and what launchers tell their
tasks. Both are listed only here. Launchers remove the secrets before they start a program, and the agent removes both
from its own environment before it starts anything that would inherit them.

The place of this process among the tasks of mpirun, srun or torchrun comes from their variables; the output of
``scontrol`` and ``sacct`` is read to explain a Slurm job to the user.
"""

import re
from collections.abc import Mapping, MutableMapping
from typing import Literal

from msgspec import Struct

from jdist.core.messages.membership import LauncherTask

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


_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_NODE_REASON = re.compile(r"\bReason=(.*?)(?: \[|\s*$)")
_UNDERWAY = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESV_DEL_HOLD")
# What happened to a job, by its state.
_WORDS = {
    "COMPLETED": "has ended",
    "COMPLETING": "is being ended",
    "CANCELLED": "was cancelled",
    "FAILED": "has failed",
    "TIMEOUT": "has reached its time limit",
    "DEADLINE": "has reached its deadline",
    "NODE_FAIL": "was ended because a node of it failed",
    "OUT_OF_MEMORY": "was ended for want of memory",
    "PREEMPTED": "was preempted",
    "BOOT_FAIL": "was ended because a node did not boot",
}


class SlurmJob(Struct, frozen=True):
    """A job, as Slurm describes it."""

    number: str
    state: str  # PENDING, RUNNING, …, in Slurm's words.
    reason: str = ""  # Why it is in that state, in Slurm's words; empty where Slurm names none.
    nodes: str = ""  # Its nodes in Slurm's notation, `bed[1-3]`; empty while it has none.
    nnodes: int = 0
    exit_code: str = ""  # `code:signal`.
    start: str = ""  # The expected start; empty if unknown.
    time_limit: str = ""

    @property
    def phase(self) -> Literal["waiting", "running", "over"]:
        """Whether it waits for its nodes, has them, or has given them back."""
        if self.state in ("PENDING", "CONFIGURING"):
            return "waiting"
        return "running" if self.state in _UNDERWAY else "over"

    def describe(self) -> str:
        """A sentence: "job 4711 is pending: Resources"."""
        if self.phase == "waiting":
            expected = f", expected to start at {self.start}" if self.start else ""
            return f"job {self.number} is {self.state.lower()}{': ' if self.reason else ''}{self.reason}{expected}"
        if self.phase == "running":
            return f"job {self.number} is {self.state.lower()} on {self.nodes}"
        words = _WORDS.get(self.state, f"is {self.state}")
        if self.state == "COMPLETING" and self.reason == "TimeLimit":
            words = _WORDS["TIMEOUT"]
        particulars = [self.state]
        if self.reason and self.reason != self.state:
            particulars.append(self.reason)
        if self.state == "TIMEOUT" and self.time_limit:
            particulars.append(f"time limit {self.time_limit}")
        if self.state == "FAILED" and self.exit_code:
            particulars.append(f"exit code {self.exit_code}")
        return f"job {self.number} {words} ({', '.join(particulars)})"

    def advice(self) -> str:
        """How its owner can avoid such an end; empty if there is no advice."""
        if self.state == "TIMEOUT" or self.reason == "TimeLimit":
            return "-- --time=HH:MM:SS asks for more"
        if self.state == "OUT_OF_MEMORY":
            return "-- --mem=SIZE asks for more"
        if self.state == "NODE_FAIL":
            return "start again; -- --exclude=NODE leaves a bad node out"
        return ""


def parse_job(text: str) -> SlurmJob | None:
    """The first job of ``scontrol show job -o``; None if there is none."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        for name, value in _FIELD.findall(line):
            fields.setdefault(name, "" if value in ("None", "(null)", "Unknown", "N/A") else value)
        if "JobState" in fields:
            break
    if not fields.get("JobId") or not fields.get("JobState"):
        return None
    nnodes = fields.get("NumNodes", "").partition("-")[0]
    return SlurmJob(
        number=fields["JobId"],
        state=fields["JobState"],
        reason=fields.get("Reason", "").replace("_", " "),
        nodes=fields.get("NodeList", ""),
        nnodes=int(nnodes) if nnodes.isdecimal() else 0,
        exit_code=fields.get("ExitCode", ""),
        start=fields.get("StartTime", "") if fields["JobState"] == "PENDING" else "",
        time_limit=fields.get("TimeLimit", ""),
    )


def describe_node(text: str) -> str:
    """``scontrol show node NAME -o`` in some words: "bed2 is DOWN: bad disk"."""
    fields = dict(_FIELD.findall(text))
    reason = _NODE_REASON.search(text)
    return f"{fields.get('NodeName', 'it')} is {fields.get('State', 'unknown')}{f': {reason[1]}' if reason else ''}"


def parse_accounting(number: str, text: str) -> SlurmJob | None:
    """The job in ``sacct -nPX -o State,ExitCode,Reason``, which remembers longer than the controller does."""
    words = text.strip().partition("\n")[0].split("|")
    if len(words) < 3 or not words[0]:
        return None
    reason = "" if words[2] in ("None", "") else words[2]
    return SlurmJob(number, words[0].split()[0].rstrip("+"), reason, exit_code=words[1])  # "CANCELLED by 1000"


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
