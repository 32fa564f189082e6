"""Slurm's command lines: the job step that starts an agent on each node, and the job to submit. Pure."""

import shlex
from collections.abc import Mapping, Sequence

from jdist.core.errors import UsageError

_MARK = "JDIST_JOIN_LINE"


def option(args: Sequence[str], *names: str) -> str:
    """Value of an option among the user's arguments (``--nodes=2``, ``--nodes 2``, ``-N 2``, ``-N2``), or ""."""
    value = ""
    for n, word in enumerate(args):
        for name in names:
            if word == name and n + 1 < len(args):
                value = args[n + 1]
            elif word.startswith(f"{name}=" if name.startswith("--") else name) and word != name:
                value = word[len(name) :].removeprefix("=")
    return value


def asked_nodes(args: Sequence[str]) -> int:
    """Number of nodes in the user's arguments for sbatch; 0 if absent. Raises UsageError for a range."""
    asked = option(args, "--nodes", "-N")
    if asked and not asked.isdecimal():
        raise UsageError(f"-- --nodes={asked}: jdist needs to know how many nodes there will be; give -N instead")
    return int(asked or 0)


def step_command(
    job: str, nodes: Sequence[str] | int, agents: Sequence[str], args: Sequence[str] = (), name: str = ""
) -> list[str]:
    """Command line that runs ``agents`` once on each of ``nodes`` of ``job`` (names, or a number of nodes).

    The step shares the nodes with the job's other steps, one of which may run the notebook, and may use all memory and
    CPUs of the job. The end of a node or a task does not end the others.
    """
    count = nodes if isinstance(nodes, int) else len(nodes)
    step = ["srun", f"--jobid={job}", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    step += [] if isinstance(nodes, int) else [f"--nodelist={','.join(nodes)}"]
    step += ["--mem=0", "--cpu-bind=none"]  # one task a node would be bound to one core, and all ranks with it
    step += ["--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--no-kill"]
    return [*step, *args, *([f"--job-name={name}"] if name else []), *agents]


def batch_command(args: Sequence[str], nnodes: int, name: str) -> list[str]:
    """Command line that submits a job: never requeued, survives a node failure. The script is its input."""
    fixed = ["--parsable", "--no-requeue", "--no-kill", "--output=/dev/null"]
    return ["sbatch", *fixed, f"--nodes={nnodes}", *args, f"--nodes={nnodes}", f"--job-name={name}"]


def batch_script(agents: Sequence[str], nnodes: int, env: Mapping[str, str], log: str, line: str) -> str:
    """The job's script.

    It contains the join line, which reaches the agents on standard input. Other users could see it in an argument or a
    variable, and a file of mode 0600 would need a shared file system. Slurm shows a job's script only to its owner and
    to administrators, and removes it with the job.
    """
    step = shlex.join(step_command("JOB", nnodes, agents)).replace("--jobid=JOB", '--jobid="$job"')
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    return f"""\
#!/bin/sh
# One jdist agent on each node of this job; they end with their cluster.
# Where the file system is shared, their output is in the cluster's log.
[ -w {shlex.quote(log)} ] && exec >>{shlex.quote(log)} 2>&1
{exports}job=$SLURM_JOB_ID
# The step must not inherit the job's own request (tasks, memory per CPU, GPUs per task).
for name in $(env | sed -n 's/^\\(SLURM_[A-Z0-9_]*\\)=.*/\\1/p'); do
  [ "$name" = SLURM_CONF ] || unset "$name"
done
exec {step} <<'{_MARK}'
{line}
{_MARK}
"""


def step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables that an enclosing job or step left as defaults for srun and sbatch."""
    kept = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
    prefixes = ("SLURM_", "SRUN_", "SBATCH_", "SLURMD_")
    return {k: v for k, v in env.items() if k in kept or not k.startswith(prefixes)}
