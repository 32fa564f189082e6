"""mpirun's command lines, for Open MPI and for the MPICH family, which includes Intel MPI. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from jdist.core.errors import UsageError
from jdist.core.settings import Host

Family = Literal["openmpi", "mpich"]
# Variables in which either family puts a process's rank. jdist starts one process on each node.
PLACES = "OMPI_COMM_WORLD_RANK,PMIX_RANK,PMI_RANK"
_HOSTFILES = {"openmpi": ("hostfile", "machinefile", "default-hostfile"), "mpich": ("f", "hostfile", "machinefile")}
_HOSTS = {"openmpi": ("host", "H"), "mpich": ("hosts", "host")}


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


def asked_hosts(args: Sequence[str], family: Family) -> tuple[str, str]:
    """The hostfile and the list of hosts among the user's arguments; "" if absent."""
    found = []
    for names in (_HOSTFILES[family], _HOSTS[family]):
        options = {f"-{n}" for n in names} | {f"--{n}" for n in names}
        values = [b for a, b in pairwise(args) if a in options]
        values += [a.partition("=")[2] for a in args if a.partition("=")[0] in options and "=" in a]
        found.append(values[-1] if values else "")
    return found[0], found[1]


def without_hosts(args: Sequence[str], family: Family) -> list[str]:
    """The user's arguments without a list of hosts, which mpirun would add to the hosts that it is given."""
    options = {f"{dash}{name}" for dash in ("-", "--") for name in _HOSTS[family]}
    kept: list[str] = []
    words = iter(args)
    for word in words:
        if word in options:
            next(words, "")
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


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
