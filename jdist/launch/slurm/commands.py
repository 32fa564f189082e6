"""Slurm's command lines: the step that puts an agent on each node of a job, and the job to be submitted. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from jdist.core.errors import UsageError

_MARK = "JDIST_JOIN_LINE"


def option(args: Sequence[str], *names: str) -> str:
    """The value of an option of the user's, as ``--nodes=2``, ``--nodes 2``, ``-N 2`` or ``-N2``; "" without it."""
    value = ""
    for n, word in enumerate(args):
        for name in names:
            if word == name and n + 1 < len(args):
                value = args[n + 1]
            elif word.startswith(f"{name}=" if name.startswith("--") else name) and word != name:
                value = word[len(name) :].removeprefix("=")
    return value


def asked_nodes(args: Sequence[str]) -> int:
    """The number of nodes that the user's arguments for sbatch ask for; 0: none. Raises UsageError for a range."""
    asked = option(args, "--nodes", "-N")
    if asked and not asked.isdecimal():
        raise UsageError(f"-- --nodes={asked}: jdist needs to know how many nodes there will be; give -N instead")
    return int(asked or 0)


def step_command(
    job: str, nodes: Sequence[str] | int, agents: Sequence[str], args: Sequence[str] = (), name: str = ""
) -> list[str]:
    """Run ``agents`` once on each of these nodes of ``job``, or on so many of them.

    The step shares the nodes with the job's other steps (a notebook may run in one of them) and takes all of their
    memory and CPUs that the job has; a node or task that ends leaves the others alone.
    """
    count = nodes if isinstance(nodes, int) else len(nodes)
    return [
        "srun",
        f"--jobid={job}",
        "--overlap",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *([] if isinstance(nodes, int) else [f"--nodelist={','.join(nodes)}"]),
        "--mem=0",
        "--cpu-bind=none",  # one task a node would be bound to one core, and all ranks with it
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        *args,
        *([f"--job-name={name}"] if name else []),
        *agents,
    ]


def batch_command(args: Sequence[str], nnodes: int, name: str) -> list[str]:
    """Submit a job that is not started a second time and outlives the failure of a node; the script is its input."""
    fixed = ["--parsable", "--no-requeue", "--no-kill", "--output=/dev/null"]
    return ["sbatch", *fixed, f"--nodes={nnodes}", *args, f"--nodes={nnodes}", f"--job-name={name}"]


def batch_script(agents: Sequence[str], nnodes: int, env: Mapping[str, str], log: str, line: str) -> str:
    """The job's script.

    The join line stands in the script and reaches the agents on their standard input. It would be seen by other users
    in an argument or a variable; a file of mode 0600 would need a file system that all nodes share. Slurm shows a
    job's script to its owner and to the cluster's administrators, and removes it with the job.
    """
    step = shlex.join(step_command("JOB", nnodes, agents)).replace("--jobid=JOB", '--jobid="$job"')
    quoted = shlex.quote(log)
    return "\n".join(
        [
            "#!/bin/sh",
            "# One jdist agent on each node of this job; they end with their cluster.",
            f"[ -w {quoted} ] && exec >>{quoted} 2>&1",  # where the file system is shared
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
            "job=$SLURM_JOB_ID",
            # what was asked for the job (tasks, memory by CPU, GPUs by task) is not what the step is to be
            "for name in $(env | sed -n 's/^\\(SLURM_[A-Z0-9_]*\\)=.*/\\1/p'); do",
            '  [ "$name" = SLURM_CONF ] || unset "$name"',
            "done",
            f"exec {step} <<'{_MARK}'",
            line,
            _MARK,
            "",
        ]
    )


def step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which srun and sbatch do what they are told: without what an earlier one left as defaults."""
    kept = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
    prefixes = ("SLURM_", "SRUN_", "SBATCH_", "SLURMD_")
    return {k: v for k, v in env.items() if k in kept or not k.startswith(prefixes)}
