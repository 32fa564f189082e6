"""Nodes of a Slurm job: agents run as a step of the surrounding job (``srun``), or in one of their own (``sbatch``)."""

import asyncio
import contextlib
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Awaitable, Mapping, Sequence

import msgspec

from jdist.core.errors import LaunchError, Remedy, UsageError
from jdist.core.launchers import SlurmJob, describe_node, parse_accounting, parse_job
from jdist.core.settings import Settings
from jdist.launch.base import TIME_LIMIT, TYPED_COUNT, WORD, LauncherForm, LauncherOption, LaunchPlan, poll_pause
from jdist.launch.launch_program import LaunchProgram, ProgramLauncher, ProgramLog, clean_environment, node_command

_ANSWER_TIMEOUT = 30.0  # Seconds for Slurm's programs to answer; its controller may be busy.
_LOOK = 0.2  # Seconds between two polls of a job that is about to end.
_QUEUE = 14 * 86400.0  # Seconds for which a job that waits in the queue can use the join line in its script.
_MARK = "JDIST_JOIN_LINE"
_PLACE, _CALLED = "SLURM_NODEID", "SLURMD_NODENAME"
_COMPLAINTS = ("srun: error", "srun: fatal", "slurmstepd", "slurmd", "sbatch: error")


class SlurmLauncher(ProgramLauncher):
    """One agent on each node of a job: that of ``--jobid``, which :meth:`complete` adds in an allocation, or a new one.

    Every client that knows the settings finds a submitted job by its name, which contains a token of this cluster.
    """

    form = LauncherForm(
        nodes="all of the job that this server runs in, else 1",
        options=(
            LauncherOption("--partition", "Partition", "gpu", pattern=WORD),
            LauncherOption("--time", "Time limit", "2:00:00", pattern=TIME_LIMIT),
            LauncherOption("--account", "Account", pattern=WORD),
            LauncherOption("--gpus-per-node", "GPUs per node", "8", pattern=TYPED_COUNT),
        ),
        arguments="other options of sbatch, such as --exclusive, or --jobid=4711 for a job that runs",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._args = list(plan.settings.launcher_args)
        self._allocation = option(self._args, "--jobid")
        self._name = option(self._args, "--job-name", "-J") or _new_name(plan.settings.name)
        self._env = step_environment(clean_environment(plan.settings.env))
        self._submitted = ""
        self._submitting: asyncio.Task[None] | None = None
        self._job: SlurmJob | None = None
        self._log: ProgramLog | None = None  # Output of the submitted job's step, if the file system is shared.
        self._polling: asyncio.Task[None] | None = None
        self._began = self._polled_at = 0.0

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """Choose the job (``--jobid``, the surrounding one, or one to submit) and the number of nodes."""
        args = list(settings.launcher_args)
        job = option(args, "--jobid") or os.environ.get("SLURM_JOB_ID", "")
        if job:
            there = _allocated(job)
            if settings.nnodes > there.nnodes:
                raise UsageError(
                    f"-N {settings.nnodes}: {there.describe()} has {there.nnodes} nodes; ask for no more, or submit "
                    f"another job by starting where SLURM_JOB_ID is not set"
                )
            nnodes = settings.nnodes or there.nnodes
            args += [] if option(args, "--jobid") else [f"--jobid={job}"]
        else:
            nnodes = settings.nnodes or asked_nodes(args)
            settings = msgspec.structs.replace(settings, invitation=max(settings.invitation, _QUEUE))
        args.append(f"--job-name={_new_name(settings.name)}")
        return super().complete(msgspec.structs.replace(settings, nnodes=nnodes, launcher_args=tuple(args)))

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start a step that reads the join line, or submit a job whose script contains it."""
        self._began = time.monotonic()
        known, ranks = asyncio.ensure_future(join_line), self.plan.node_ranks
        if self._allocation:
            places = await self._places([self._allocation])
            nodes = [node for node, _ in places[ranks.start : ranks.stop]]
            if len(nodes) < len(ranks):
                raise LaunchError(f"job {self._allocation} has no node left for node {ranks.start + len(nodes)}")
            step = self._step(self._allocation, nodes, ranks.start)
            self.programs = dict.fromkeys(ranks, step)
            step.send_line(await known)
            return
        line = await known
        self._log = ProgramLog(self.plan.log, _COMPLAINTS)
        self._submitting = asyncio.create_task(self._submit(line))
        await asyncio.shield(self._submitting)

    async def _submit(self, line: str) -> None:
        count, env = len(self.plan.node_ranks), dict(self.plan.settings.env)
        script = batch_script(self._agents(self.plan.first), count, env, self.plan.log, line)
        args = [a for a in self._args if a != f"--job-name={self._name}"]
        out = await self._call(batch_command(args, count, self._name), script)
        self._submitted = out.strip().splitlines()[-1].partition(";")[0]

    def _step(self, job: str, nodes: Sequence[str], first: int) -> LaunchProgram:
        args = self._args if self._allocation else []  # those for sbatch are not for srun
        command = step_command(job, nodes, self._agents(first), args, self._name)
        return LaunchProgram(command, self._env, ProgramLog(self.plan.log, _COMPLAINTS))

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another step on the node, in the job that holds it."""
        numbers = [self._allocation] if self._allocation else await self._find()
        name = self.name_of(node_rank)
        try:
            places = await self._places(numbers)
            found = [place for place in places if place[0] == name] if name else places[node_rank : node_rank + 1]
            why = await self._why_taken(name) if numbers and not found else "its job is over"
        except LaunchError as e:
            found, why = [], str(e)
        if not found:
            remedies = (
                Remedy("remove", "go on without it", ranks=f"node={node_rank}"),
                Remedy("stop", "end the cluster, and start a new one"),
            )
            raise LaunchError(f"node {node_rank} cannot be started again: {why}", remedies=remedies)
        node, job = found[-1]
        step = self.programs[node_rank] = self._step(job, [node], node_rank)
        step.send_line(join_line)
        return True

    async def _why_taken(self, name: str) -> str:
        """Slurm's reason for a node that its job does not hold any more."""
        shown = await self._call(["scontrol", "show", "node", name, "-o"]) if name else ""
        return f"Slurm has taken it from the job: {describe_node(shown)}" if shown else "its job has no such node"

    def _agents(self, first: int) -> list[str]:
        return node_command(_PLACE, first, "--called", _CALLED, fork=self.plan.settings.fork)

    def failures(self) -> dict[int, str]:
        """Reasons reported by the nodes; for other nodes, the end of the job, or else of the step."""
        self._poll_if_due()
        found = {}
        for node_rank in {*self.plan.node_ranks, *self.programs}:
            log = self.programs[node_rank].log if node_rank in self.programs else self._log
            why = (log.ended_nodes().get(node_rank, "") if log else "") or self._job_end(log)
            if why:
                found[node_rank] = why
        return {**super().failures(), **found}

    def why_ended(self, program: LaunchProgram, status: int) -> str:
        said = program.log.last_words()
        return f"srun ended with code {status}{': ' if said else ''}{said}"

    def _job_end(self, log: ProgramLog | None) -> str:
        if self._job is None or self._job.phase != "over":
            return ""
        said = log.last_words() if log else ""
        blind = "" if said or self._job.state != "FAILED" else "-- --output=FILE keeps what its nodes say"
        return "; ".join(filter(None, (self._job.describe(), said, self._job.advice(), blind)))

    def describe(self) -> str:
        """The job's state, and Slurm's reason for it while it has no nodes."""
        self._poll_if_due()
        if self._job is None:
            return f"job {self._submitted} is submitted" if self._submitted else ""
        return self._job.describe() if self._job.phase != "running" else f"{self._job.describe()}; its agents start"

    def _poll_if_due(self) -> None:
        """Poll the job in a task if the last poll is old enough; the interval grows with the time waited."""
        number = self._submitted or self._allocation
        pause = poll_pause(time.monotonic() - self._began)
        is_polling = self._polling is not None and not self._polling.done()
        if number and not is_polling and time.monotonic() - self._polled_at >= pause:
            self._polling = asyncio.get_running_loop().create_task(self._poll(number))

    async def _poll(self, number: str) -> None:
        with contextlib.suppress(LaunchError):  # slurmctld does not answer: keep its last answer
            self._job = await self._show(number) or self._job
        self._polled_at = time.monotonic()

    async def _show(self, number: str) -> SlurmJob | None:
        """The job's current or final state; None if Slurm has forgotten it."""
        try:
            job = parse_job(await self._call(["scontrol", "show", "job", number, "-o"]))
        except LaunchError as e:
            if "Invalid job id" not in str(e):
                raise
            job = None
        if job is None:
            with contextlib.suppress(LaunchError):  # accounting may not be kept here
                asked = ["sacct", "-n", "-P", "-X", "-j", number, "-o", "State,ExitCode,Reason"]
                job = parse_accounting(number, await self._call(asked))
        return job

    async def _places(self, numbers: Sequence[str]) -> list[tuple[str, str]]:
        """Nodes of these jobs by node rank, each with its job. Raises LaunchError if a job is over."""
        places: list[tuple[str, str]] = []
        for number in numbers:
            job = await self._show(number)
            if job is None or job.phase == "over":
                raise LaunchError(job.describe() if job else f"job {number} is not known to Slurm")
            nodes = await self._call(["scontrol", "show", "hostnames", job.nodes]) if job.nodes else ""
            places += [(node, number) for node in nodes.split()]
        return places

    async def end(self) -> None:
        """End the steps and cancel a submitted job, unless they end by themselves with their agents."""
        if self._polling is not None:
            self._polling.cancel()
        if self._submitting is not None:
            await asyncio.wait([self._submitting])  # at most _ANSWER_TIMEOUT; else a job of unknown number would stay
        await super().end()
        if self._submitted:
            await self._cancel([self._submitted])

    async def remove_leftovers(self) -> None:
        """Cancel the jobs submitted for this cluster. An allocation belongs to the user and is left alone."""
        if not self._allocation:
            await self._cancel(await self._find())

    async def _find(self) -> list[str]:
        """Numbers of this user's unfinished jobs for this cluster, oldest first."""
        asked = ["squeue", "--noheader", "--format=%A", f"--name={self._name}", f"--user={os.geteuid()}"]
        return sorted(set((await self._call(asked)).split()), key=int)

    async def _cancel(self, numbers: Sequence[str]) -> None:
        """Give running jobs a moment to end with their agents, then cancel what is left."""
        deadline = time.monotonic() + self.patience
        for number in numbers:
            while (job := await self._show(number)) is not None and job.phase == "running":
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(_LOOK)
            if job is not None and job.phase != "over":
                await self._call(["scancel", f"--name={self._name}", f"--user={os.geteuid()}", number])

    async def _call(self, argv: Sequence[str], text: str = "") -> str:
        return await asyncio.to_thread(_call, argv, self._env, text)


def _allocated(number: str) -> SlurmJob:
    """The surrounding job, or the one that the user named. Raises UsageError if it has no nodes."""
    try:
        job = parse_job(_call(["scontrol", "show", "job", number, "-o"], step_environment(os.environ), ""))
    except LaunchError as e:
        raise UsageError(f"--launcher slurm: job {number} cannot be used: {e}") from None
    if job is None or job.phase != "running":
        raise UsageError(
            f"--launcher slurm: {job.describe() if job else f'there is no job {number}'}, so there is no node to use; "
            f"start where SLURM_JOB_ID is not set, and a job is submitted"
        )
    return job


def _call(argv: Sequence[str], env: dict[str, str], text: str) -> str:
    """Output of one of Slurm's programs. Raises LaunchError with its error message."""
    try:
        done = subprocess.run(
            argv, input=text, env=env, capture_output=True, text=True, check=False, timeout=_ANSWER_TIMEOUT
        )
    except FileNotFoundError:
        raise LaunchError(f"{argv[0]} is not on the PATH: start where Slurm's programs are (a login node)") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{argv[0]} gave no answer within {_ANSWER_TIMEOUT:.0f} s: is slurmctld there?") from None
    if done.returncode:
        raise LaunchError(f"{argv[0]} refused: {' / '.join(done.stderr.strip().splitlines()[-3:])}")
    return done.stdout


def _new_name(cluster: str) -> str:
    return f"jdist-{cluster}-{secrets.token_hex(4)}"


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

    The step shares nodes, memory and CPUs with the job's other steps, one of which may run the notebook.
    """
    count = nodes if isinstance(nodes, int) else len(nodes)
    step = ["srun", f"--jobid={job}", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    step += [] if isinstance(nodes, int) else [f"--nodelist={','.join(nodes)}"]
    step += ["--mem=0", "--cpu-bind=none"]  # one task a node would be bound to one core, and all ranks with it
    step += ["--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--no-kill"]  # a task's end does not end the others
    return [*step, *args, *([f"--job-name={name}"] if name else []), *agents]


def batch_command(args: Sequence[str], nnodes: int, name: str) -> list[str]:
    """Command line that submits a job: never requeued, survives a node failure. The script is its input."""
    fixed = ["--parsable", "--no-requeue", "--no-kill", "--output=/dev/null"]
    return ["sbatch", *fixed, f"--nodes={nnodes}", *args, f"--nodes={nnodes}", f"--job-name={name}"]


def batch_script(agents: Sequence[str], nnodes: int, env: Mapping[str, str], log: str, line: str) -> str:
    """The job's script with the join line. Slurm shows it only to its owner and to administrators, until the job ends.

    Other users could see an argument or a variable, and a file of mode 0600 would need a shared file system.
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
