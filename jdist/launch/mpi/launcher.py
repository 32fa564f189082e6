"""MPI: agents by ``mpirun``, one on each of its nodes."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import shutil
import subprocess
from collections.abc import Awaitable, Sequence
from pathlib import Path

import msgspec

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Host, Settings
from jdist.launch.base import Launcher, Plan
from jdist.launch.hosts import parse_hosts, read_hostfile
from jdist.launch.launch_program import Engine, Log, clean_environment, node_command
from jdist.launch.mpi.commands import PLACES, Family, advice, asked_hosts, check_hosts, family_of, mpirun_command

_PROGRAMS = ("mpirun", "mpiexec")
_EXPORTED = ("PYTHONPATH",)
_VERSION_TIMEOUT = 30.0
_END = 5.0
"""Seconds for mpirun to end by itself once the agents have been told to."""


class MpiLauncher(Launcher):
    """One mpirun for all nodes. The first argument after ``--`` may name the program, as in ``-- mpiexec.hydra -f F``.

    Agents do not hang on it: mpirun ends everything when one of its daemons is gone, and they live on.
    """

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self._program, self._args = _split(plan.settings.launcher_args)
        self._engines: dict[int, Engine] = {}
        """By node rank."""
        self._line_file: Path | None = None

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """As many nodes as there are hosts, and as many ranks on each as it has slots, unless the user says."""
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
        """Open MPI's mpirun starts at once and hands the line on to all of its processes; MPICH's cannot do that."""
        known, ranks = asyncio.ensure_future(join_line), self.plan.node_ranks
        await self._start(self._hosts_of(ranks), ranks, known)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Another mpirun for the node, if it is known which host that is."""
        known = self._known_hosts()
        name = self.names[node_rank] if node_rank < len(self.names) else ""
        if not name and node_rank < len(known) and len(self.names) in (0, len(known)):
            name = known[node_rank].name
        if not name:
            return False
        await self._start([Host(name)], range(node_rank, node_rank + 1), _known(join_line))
        return True

    async def _start(self, hosts: Sequence[Host], ranks: range, join_line: Awaitable[str]) -> None:
        family, env = _family(self._program), self.plan.settings.env
        called = [h.name for h in hosts or self._known_hosts()]
        agents = node_command(PLACES, ranks.start, "--hosts", ",".join(called), fork=self.plan.settings.fork)
        if family == "mpich":
            self._remove_line()
            self._line_file = _write_line(await join_line)
            agents += ["--line", str(self._line_file)]
        command = mpirun_command(self._program, family, len(ranks), self._args, hosts=hosts, is_root=os.geteuid() == 0)
        if family == "openmpi":  # whose processes on other hosts have a login's environment
            names = {n for n, _ in env} | {n for n in _EXPORTED if n in os.environ}
            command += [w for n in sorted(names) for w in ("-x", n)]
        engine = Engine([*command, *agents], clean_environment(env), Log(self.plan.log))
        self._engines.update(dict.fromkeys(ranks, engine))
        engine.tell("" if family == "mpich" else await join_line)

    def _known_hosts(self) -> tuple[Host, ...]:
        return self.plan.settings.hosts or _hosts_among(self._args, _family(self._program))

    def _hosts_of(self, ranks: range) -> Sequence[Host]:
        """The hosts to be named to mpirun: of all nodes those that the user named by --hosts, of one more its own."""
        known = self._known_hosts()
        if not ranks.start:
            return self.plan.settings.hosts[: ranks.stop]
        if len(known) == len(ranks):
            return known  # named for this node
        if len(known) < ranks.stop:
            raise LaunchError(f"it is not known on which host node {ranks.start} is to be: -- --host NAME says it")
        return known[ranks.start : ranks.stop]

    # ------------------------------------------------------------ what has become of it

    def failures(self) -> dict[int, str]:
        """What nodes have said about their agents' ends; for the others, what mpirun said at its own."""
        found = {}
        for node_rank, engine in self._engines.items():
            why = engine.log.ended_nodes().get(node_rank, "")
            if not why and engine.status is not None:
                said = engine.log.first_words()
                ended = f"{self._program} ended with code {engine.status}"
                why = "; ".join(filter(None, (f"{ended}: {said}" if said else ended, advice(said))))
            if why:
                found[node_rank] = why
        return found

    def describe(self) -> str:
        """What it waits for."""
        return f"{self._program} starts an agent on each of {len(self.plan.node_ranks)} nodes" if self._engines else ""

    # ------------------------------------------------------------ the end

    async def let_go(self) -> None:
        """All nodes have read the line."""
        self._remove_line()

    async def end(self) -> None:
        """End mpirun, if it does not end by itself with the agents."""
        for engine in {id(e): e for e in self._engines.values()}.values():
            await engine.end(_END, _END)
        self._remove_line()

    def _remove_line(self) -> None:
        if self._line_file is not None:
            self._line_file.unlink(missing_ok=True)


def _split(args: Sequence[str]) -> tuple[str, list[str]]:
    """The program and its arguments. Raises UsageError if there is none."""
    if args and not args[0].startswith("-"):
        if shutil.which(args[0]) is None:
            raise UsageError(
                f"--launcher mpi: there is no program {args[0]!r} here; the first word after -- names mpirun"
            )
        return args[0], list(args[1:])
    found = next(filter(shutil.which, _PROGRAMS), None)
    if found is None:
        raise UsageError("--launcher mpi: neither mpirun nor mpiexec is on the PATH; -- /path/to/mpirun names it")
    return found, list(args)


@functools.cache
def _family(program: str) -> Family:
    """Raises UsageError for an mpirun that is not known."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, timeout=_VERSION_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UsageError(f"--launcher mpi: {program} --version gave no answer: {e}") from None
    said = f"{done.stdout}\n{done.stderr}".strip()
    family = family_of(said)
    if family is None:
        raise UsageError(f"--launcher mpi knows Open MPI, MPICH and Intel MPI; {program} says {said.splitlines()[:1]}")
    return family


def _hosts_among(args: Sequence[str], family: Family) -> tuple[Host, ...]:
    """The hosts that the user has named to mpirun itself."""
    hostfile, hosts = asked_hosts(args, family)
    if hostfile:
        return read_hostfile(hostfile)
    return parse_hosts(hosts) if hosts else ()


def _write_line(line: str) -> Path:
    """A file of mode 0600 in the home directory, which nodes are most likely to share.

    MPICH's mpiexec gives its input to its first process only, and the line must not be an argument or a variable.
    """
    path = Path.home() / f".jdist-join-{secrets.token_hex(8)}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
        f.write(f"{line}\n")
    return path


async def _known(line: str) -> str:
    return line
