"""The memory of a cluster's processes, and a check that only the ranks have loaded torch."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
from measuring.frontend import IDLE, FrontEnd, private_runtime
from measuring.table import MEGABYTES, Pairs, Table, cannot_run

import jdist
from jdist.wire.transport.keys import Connection

RANKS = 4
WARM_TIMEOUT = 60.0


def processes(connection: Connection, workers: list[int]) -> dict[str, list[psutil.Process]]:
    """Every process of the cluster, by its role."""
    ranks = [psutil.Process(pid) for pid in workers]
    agent = ranks[0].parent()
    if agent is None:
        cannot_run("rank 0's agent is gone")
    children = [p for p in agent.children() if p.pid not in workers]
    forkserver = [p for p in children if "jdist.agent.processes.forkserver" in p.cmdline() and _is_server(p)]
    following = [p for p in children if p.name() == "jdist-next"]
    store = [p for p in children if p not in forkserver and p not in following]
    return {
        "controller": [psutil.Process(connection.pid)],
        "agent": [agent],
        "forkserver": forkserver,
        "next child": following,
        "store": store,
        "worker": ranks,
    }


def _is_server(process: psutil.Process) -> bool:
    """Its forked children have its command line; they have names of their own."""
    return process.name() == "jdist-fork"


def wait_warm(connection: Connection, workers: list[int]) -> None:
    """Wait until an idle node's fork server has been replaced by the warm one."""
    (first,) = processes(connection, workers)["forkserver"]
    deadline = time.monotonic() + WARM_TIMEOUT
    while processes(connection, workers)["forkserver"] in ([], [first]) or first.is_running():
        if time.monotonic() > deadline:
            cannot_run(f"no warm forkserver within {WARM_TIMEOUT:.0f} s")
        time.sleep(0.1)


def has_torch(process: psutil.Process) -> bool:
    return "/libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def plain_kernel_rss() -> float:
    """RSS of an ipykernel that has run one empty cell."""
    with FrontEnd() as plain:
        plain.run("pass")
        return float(psutil.Process(plain.pid).memory_info().rss)


def main() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        cannot_run("this system has no /proc/PID/smaps_rollup")
    table = Table(
        f"memory, {RANKS} ranks after one all_reduce: the figure is PSS (shared pages counted in parts),\n"
        "beside RSS (in full); the ratio is the one to the other"
    )
    with jdist.start(nproc_per_node=RANKS, idle_timeout=IDLE) as cluster:
        cluster.run("t = torch.ones(1)\ndist.all_reduce(t)")
        by_kind = processes(cluster.asynchronous.link.connection, [r.pid for r in cluster.status().ranks])
        total = 0.0
        for kind, them in by_kind.items():
            infos = [p.memory_full_info() for p in them]
            total += sum(i.pss for i in infos)
            found = Pairs(tuple(float(i.pss) for i in infos), tuple(float(i.rss) for i in infos))
            table.row(f"{kind} ({len(them)})", found, MEGABYTES)
        table.alone("the whole cluster, PSS", [total], MEGABYTES)
        connection, workers = cluster.asynchronous.link.connection, [r.pid for r in cluster.status().ranks]
        wait_warm(connection, workers)
        warm = [p.memory_full_info() for p in processes(connection, workers)["forkserver"]]
        found = Pairs(tuple(float(i.pss) for i in warm), tuple(float(i.rss) for i in warm))
        table.row("forkserver, once the node has been idle", found, MEGABYTES)
        everything = [p for them in processes(connection, workers).values() for p in them]
        table.alone(
            "the whole cluster then, PSS", [float(sum(p.memory_full_info().pss for p in everything))], MEGABYTES
        )
        for kind in ("controller", "agent"):
            table.fact(f"the {kind} has no torch in it", not any(has_torch(p) for p in by_kind[kind]))
    table.alone("for comparison: a plain ipykernel, RSS", [plain_kernel_rss()], MEGABYTES)


if __name__ == "__main__":
    with private_runtime():
        main()
