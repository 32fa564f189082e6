"""Nodes of an MPI: ``mpirun`` or ``mpiexec`` starts one agent on each."""

import asyncio
import functools
import os
import secrets
import shutil
import subprocess
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Host, Settings
from jdist.launch.base import LauncherForm, LaunchPlan, resolved
from jdist.launch.hosts import parse_hosts, read_hostfile
from jdist.launch.launch_program import LaunchProgram, ProgramLauncher, ProgramLog, clean_environment, node_command

Family = Literal["openmpi", "mpich"]
PLACES = "OMPI_COMM_WORLD_RANK,PMIX_RANK,PMI_RANK"  # Variables with a process's rank in either family of MPIs.
HOSTFILES = {  # Options that name a hostfile.
    "openmpi": ("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-default-hostfile", "--default-hostfile"),
    "mpich": ("-f", "--f", "-hostfile", "--hostfile", "-machinefile", "--machinefile"),
}
HOSTS = {"openmpi": ("-host", "--host", "-H", "--H"), "mpich": ("-hosts", "--hosts", "-host", "--host")}
_MPIRUNS = ("mpirun", "mpiexec")
_ANSWER_TIMEOUT = 30.0  # Seconds for mpirun to tell its version.


class MpiLauncher(ProgramLauncher):
    """One mpirun for all nodes, which the first word after ``--`` may name. The agents survive its failure."""

    form = LauncherForm(
        hosts="optional",
        nodes="one for each host",
        arguments="options of mpirun; the first word may name another program, such as /opt/mpi/bin/mpirun",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._program, self._args = _split(plan.settings.launcher_args)
        self._line_file: Path | None = None

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """One node for each host and one rank for each slot, unless the user says otherwise."""
        program, args = _split(settings.launcher_args)
        hosts = settings.hosts or _hosts_among(args, _family(program))
        check_hosts(settings.hosts)
        if not settings.nnodes and not hosts:
            raise UsageError(
                "--launcher mpi: -N says how many nodes mpirun is to use; with --hosts or --hostfile it is all of them"
            )
        nnodes = settings.nnodes or len(hosts)
        if settings.hosts and nnodes > len(hosts):
            raise UsageError(f"-N {nnodes}: there are {len(hosts)} hosts")
        slots = tuple(h.slots for h in hosts[:nnodes])
        nproc = settings.nproc_per_node or (slots if len(slots) == nnodes and all(slots) else ())
        if len(set(nproc)) == 1:
            nproc = nproc[:1]
        return msgspec.structs.replace(settings, nnodes=nnodes, nproc_per_node=nproc)

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start mpirun. Open MPI's forwards the line to all processes; MPICH's needs a file with it first."""
        ranks, known = self.plan.node_ranks, self._known_hosts()
        if self.plan.host is not None:
            hosts: Sequence[Host] = [self.plan.host]
        elif not ranks.start:
            hosts = self.plan.settings.hosts[: ranks.stop]
        elif len(known) == len(ranks):
            hosts = known  # named for the added node
        elif len(known) < ranks.stop:
            raise LaunchError(f"on which host is node {ranks.start} to be? Name it: add-node --host HOST")
        else:
            hosts = known[ranks.start : ranks.stop]
        await self._start(hosts, ranks, asyncio.ensure_future(join_line))

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another mpirun for the node, if its host is known."""
        host = self.host_of(node_rank, self._known_hosts())
        if host is not None:
            await self._start([host], range(node_rank, node_rank + 1), resolved(join_line))
        return host is not None

    async def _start(self, hosts: Sequence[Host], ranks: range, join_line: Awaitable[str]) -> None:
        family, env = _family(self._program), self.plan.settings.env
        called = [h.name for h in hosts or self._known_hosts()]
        agents = node_command(PLACES, ranks.start, "--hosts", ",".join(called), fork=self.plan.settings.fork)
        if family == "mpich":
            await self.release()
            self._line_file = _write_line(await join_line)
            agents += ["--line", str(self._line_file)]
        args = take_option(self._args, HOSTS[family])[1] if hosts else self._args  # mpirun would use both
        is_root = os.geteuid() == 0
        command = mpirun_command(self._program, family, len(ranks), args, hosts=hosts, is_root=is_root)
        if family == "openmpi":  # whose processes on other hosts have a login's environment
            names = {n for n, _ in env} | ({"PYTHONPATH"} & os.environ.keys())
            command += [w for n in sorted(names) for w in ("-x", n)]
        program = LaunchProgram([*command, *agents], clean_environment(env), ProgramLog(self.plan.log))
        self.programs.update(dict.fromkeys(ranks, program))
        program.send_line("" if family == "mpich" else await join_line)

    def _known_hosts(self) -> tuple[Host, ...]:
        return self.plan.settings.hosts or _hosts_among(self._args, _family(self._program))

    def why_ended(self, program: LaunchProgram, status: int) -> str:
        """mpirun's own error."""
        said = program.log.first_words()
        ended = f"{self._program} ended with code {status}"
        return "; ".join(filter(None, (f"{ended}: {said}" if said else ended, advice(said))))

    def describe(self) -> str:
        return f"{self._program} starts an agent on each of {len(self.plan.node_ranks)} nodes" if self.programs else ""

    async def release(self) -> None:
        """Remove the file with the join line, which all nodes have read."""
        if self._line_file is not None:
            self._line_file.unlink(missing_ok=True)

    async def end(self) -> None:
        await super().end()
        await self.release()


def _split(args: Sequence[str]) -> tuple[str, list[str]]:
    """The program and its arguments. Raises UsageError if there is none."""
    if args and not args[0].startswith("-"):
        if shutil.which(args[0]) is None:
            raise UsageError(
                f"--launcher mpi: there is no program {args[0]!r} here; the first word after -- names mpirun"
            )
        return args[0], list(args[1:])
    found = next(filter(shutil.which, _MPIRUNS), None)
    if found is None:
        raise UsageError("--launcher mpi: neither mpirun nor mpiexec is on the PATH; -- /path/to/mpirun names it")
    return found, list(args)


@functools.cache
def _family(program: str) -> Family:
    """Family of an mpirun. Raises UsageError if it is unknown."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UsageError(f"--launcher mpi: {program} --version gave no answer: {e}") from None
    said = f"{done.stdout}\n{done.stderr}".strip()
    family = family_of(said)
    if family is None:
        raise UsageError(f"--launcher mpi knows Open MPI, MPICH and Intel MPI; {program} says {said.splitlines()[:1]}")
    return family


def _hosts_among(args: Sequence[str], family: Family) -> tuple[Host, ...]:
    """Hosts that the user named in mpirun's own arguments."""
    hostfile, hosts = (take_option(args, names[family])[0] for names in (HOSTFILES, HOSTS))
    if hostfile:
        return read_hostfile(hostfile)
    return parse_hosts(hosts) if hosts else ()


def _write_line(line: str) -> Path:
    """Write the join line to a file of mode 0600 in the home directory, which nodes most likely share."""
    # MPICH's mpiexec forwards its input to its first process only, and the line must not be in argv or a variable.
    path = Path.home() / f".jdist-join-{secrets.token_hex(8)}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
        f.write(f"{line}\n")
    return path


def family_of(version: str) -> Family | None:
    """The family, from the output of ``mpirun --version``; None if unknown."""
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version or "prterun" in version:
        return "openmpi"
    if "HYDRA" in version or "Intel(R) MPI" in version or "MPICH" in version:
        return "mpich"
    return None


def mpirun_command(
    program: str, family: Family, nnodes: int, args: Sequence[str], *, hosts: Sequence[Host] = (), is_root: bool = False
) -> list[str]:
    """Command line up to the program to run: one process on each of ``nnodes`` nodes, after the user's ``args``."""
    command = [program, *args]
    names = ",".join(h.name for h in hosts)
    if family == "mpich":
        return [*command, *(["-hosts", names] if names else []), "-n", str(nnodes), "-ppn", "1"]
    if names:
        command += ["--host", names]
    if is_root and "--allow-run-as-root" not in command:
        command.append("--allow-run-as-root")  # whoever is root here runs this notebook as root already
    # binding: one process a node would be bound to one core, and all ranks of the node with it
    return [*command, "-np", str(nnodes), "--map-by", "ppr:1:node", "--bind-to", "none", "--stdin", "all"]


def take_option(args: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """The last value of an option with one of these names ("" if absent), and the other arguments."""
    value, others, words = "", list[str](), iter(args)
    for word in words:
        name, equals, given = word.partition("=")
        if name in names:
            value = given if equals else next(words, "")
        else:
            others.append(word)
    return value, others


def advice(said: str) -> str:
    """What to do about mpirun's error message; empty if the message says it itself."""
    if "Permission denied" in said or "Host key verification failed" in said:
        return "ssh to each of the hosts must work without a question: ssh-copy-id HOST, and ssh HOST once"
    if "Could not resolve" in said or "not known" in said:
        return "each host's name must be known here, or to ssh"
    if "not enough slots" in said:
        return "give the hosts slots=N, N being 1 or more, and no more nodes than there are hosts"
    return ""


def check_hosts(hosts: Sequence[Host]) -> None:
    """Raise UsageError for host options that mpirun has no equivalent for."""
    for host in hosts:
        if "@" in host.name:
            raise UsageError(f"--hosts {host.name}: mpirun takes no user's name; put it into ~/.ssh/config")
        if host.python or host.directory:
            raise UsageError(f"python= and directory= of host {host.name} are for --launcher ssh")
