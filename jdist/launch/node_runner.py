"""Node: what srun or mpirun runs on each node. It starts the node's agent, and says what became of it.

The agent gets a session of its own, with its output in a file that has no name: an engine that ends all its processes
because one of them, or one of its daemons, has gone away does not reach the agents of the other nodes, and an agent
whose engine is gone still has somewhere to write. Agents end when the controller says so or has been away for the
grace. (Slurm keeps track of processes in other ways, and ends agents with their job.)

What the engine has told this process about its place is not told to the agent and its ranks: they are not the tasks
that the engine counts, and libraries that find its variables would believe they were.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from jdist.core.environment import LAUNCHER_VARIABLES, SECRETS, without

_TAIL = 2000
"""Bytes of the agent's last output that are passed on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it ends. 0 whatever became of it, so that no engine ends the other nodes for it."""
    parser = argparse.ArgumentParser("python -m jdist.launch.node_runner", description=__doc__)
    parser.add_argument("--place", required=True, help="variables, the first of which that is set is the node's place")
    parser.add_argument("--first", type=int, default=0, help="node rank of place 0")
    parser.add_argument("--called", default="", help="variable that holds what the engine calls this node")
    parser.add_argument("--hosts", default="", help="what the user calls the nodes, in the order of their places")
    parser.add_argument("--line", default="", help="file that holds the join line; default: standard input")
    parser.add_argument("--no-fork", action="store_true")
    options = parser.parse_args(argv)
    place = find_place(options.place.split(","), os.environ)
    host = socket.gethostname()
    if place is None:
        print(f"jdist: none of {options.place} is set on {host}: which node is this?", file=sys.stderr)
        return 0
    node_rank = options.first + place
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent's end is this process's; SIGKILL ends this one without it
    try:
        status, words = _run(node_rank, _name(place, options), options)
    except OSError as e:
        status, words = -1, f"its agent could not be started: {e}"
    finally:
        if options.line and place == 0:
            _remove(options.line)
    if status:
        print(f"jdist node {node_rank} ({host}): {words}", file=sys.stderr, flush=True)
    return 0


def find_place(variables: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """The node's place among those that the engine has started."""
    return next((int(environ[v]) for v in variables if environ.get(v, "").isdecimal()), None)


def _name(place: int, options: argparse.Namespace) -> str:
    """What this node is called by those who may have to start another agent on it; "" if nobody has said."""
    hosts = options.hosts.split(",")
    return os.environ.get(options.called, "") or (hosts[place] if place < len(hosts) else "")


def _run(node_rank: int, name: str, options: argparse.Namespace) -> tuple[int, str]:
    """The agent's status when it has ended, and what to say about that."""
    command = [sys.executable, "-P", "-m", "jdist", "join", "--node-rank", str(node_rank)]
    command += ["--no-fork"] * options.no_fork
    with tempfile.TemporaryFile() as output, _open_line(options.line) as line:
        agent = subprocess.Popen(
            [*command, "-"],
            stdin=line,
            stdout=output,
            stderr=output,
            env={**without(os.environ, SECRETS, LAUNCHER_VARIABLES), "JDIST_HOST": name},
            start_new_session=True,
            preexec_fn=_heed_signals,  # noqa: PLW1509 — there is one thread here
        )
        status = agent.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL))
        said = output.read().decode(errors="replace").strip().splitlines()
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with code {status}"
    return status, f"its agent {how}: {' / '.join(said[-3:])}".rstrip(": ")


def _open_line(path: str) -> BinaryIO:
    try:
        return open(path or 0, "rb", closefd=bool(path))
    except OSError as e:
        raise OSError(
            f"the join line's file cannot be read ({e}); this mpirun gives its input to one process only, so the home "
            f"directory must be the same on all nodes (Open MPI needs no such thing)"
        ) from None


def _heed_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as e:
        if os.path.exists(path):
            print(f"jdist: {path} is not needed any more and could not be removed: {e}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
