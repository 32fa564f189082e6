"""Starts by each launcher on three nodes of this machine, against the local launcher with as many nodes.

The nodes are namespaces, as in the tests, with a real sshd, slurmd and Ray on each; what is not installed is left out
with a line that says so. Needs root.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring.frontend import IDLE, private_runtime
from measuring.table import SECONDS, Table, cannot_run, pairs

import jdist

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from support.hosts.namespaces import NNODES, Bed  # noqa: E402
from support.hosts.rays import Rays  # noqa: E402
from support.hosts.slurmd import PROGRAMS, Slurm  # noqa: E402
from support.hosts.sshd import Sshd  # noqa: E402

TURNS = 3
REDUCE = "t = torch.ones(1); dist.all_reduce(t); t.item()"

Options = dict[str, Any]


@contextmanager
def up(thing: Any, *arguments: Any) -> Iterator[Any]:
    """A bed or daemons, for as long as they are measured."""
    try:
        thing.up(*arguments)
        yield thing
    finally:
        thing.down()


def start(**options: Any) -> None:
    """A start, and its first all_reduce."""
    env = {"PYTHONPATH": str(TESTS.parent), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}
    with jdist.start(1, NNODES, backend="gloo", idle_timeout=IDLE, timeout=120, env=env, **options) as cluster:
        found = cluster.run(REDUCE).values
        if found != dict.fromkeys(range(NNODES), float(NNODES)):
            raise RuntimeError(f"the all_reduce gave {found}")


def launchers(bed: Bed, stack: ExitStack) -> Iterator[tuple[str, Options]]:
    """Names and options of what can be measured here; daemons stay up until the stack is closed."""
    if not Path("/usr/sbin/sshd").exists():
        print("ssh and mpi are left out: there is no sshd")
    else:
        home, hosts = stack.enter_context(up(Sshd(bed))).home, "a,b,c"  # as its user's configuration calls them
        os.environ["HOME"] = str(home)
        yield "ssh", {"launcher": "ssh", "hosts": hosts}
        if shutil.which("mpirun.openmpi") is None:
            print("mpi is left out: there is no mpirun.openmpi")
        else:
            net = f"{bed.head.rpartition('.')[0]}.0/24"
            words = [w for name in ("oob", "btl") for w in ("--mca", f"{name}_tcp_if_include", net)]
            agent = ["--mca", "plm_rsh_agent", f"ssh -F {home}/.ssh/config"]
            yield "mpi", {"launcher": "mpi", "hosts": hosts, "launcher_args": ["mpirun.openmpi", *agent, *words]}
    if any(shutil.which(p) is None for p in PROGRAMS):
        print("slurm is left out: it is not installed")
    else:
        os.environ["SLURM_CONF"] = str(stack.enter_context(up(Slurm(bed))).conf)
        yield "slurm (sbatch)", {"launcher": "slurm"}
    if find_spec("ray") is None:
        print("ray is left out: it is not installed")
    else:
        address = stack.enter_context(up(Rays(bed), NNODES)).address
        yield "ray", {"launcher": "ray", "bind_host": bed.head, "launcher_args": ["--address", address]}


def main() -> None:
    if os.geteuid() != 0:
        cannot_run("namespaces need root")
    table = Table("from start to the first all_reduce and the end of stop, 3 nodes of 1 rank; floor: --launcher local")
    local: Callable[[], None] = start
    with ExitStack() as stack:
        bed = stack.enter_context(up(Bed(os.getpid() % 16384)))
        for name, options in launchers(bed, stack):
            table.row(name, pairs(lambda o=options: start(**o), local, TURNS), SECONDS)  # type: ignore[misc]


if __name__ == "__main__":
    with private_runtime():
        main()
