"""Node runner: what srun or mpirun runs on each node. It starts the node's agent and reports how the agent ended.

The agent has a session and an unnamed output file of its own, so it lives on when a launch program fails and ends all
its processes, until the controller tells it to end or the agent grace is over. (Slurm ends agents with their job.)
It does not get the launch program's variables: libraries such as MPI would take its ranks for the tasks counted there.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from jdist.core.launchers import LAUNCHER_VARIABLES, SECRETS, without

_TAIL = 2000  # Bytes of the agent's last output that are reported.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until it ends. Always returns 0, so that no launch program ends the other nodes because of it."""
    parser = argparse.ArgumentParser("python -m jdist.launch.node_runner", description=__doc__)
    parser.add_argument("--place", required=True, help="variables, the first of which that is set is the node's place")
    parser.add_argument("--first", type=int, default=0, help="node rank of place 0")
    parser.add_argument("--called", default="", help="variable that holds the launch program's name of this node")
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
    _set_signals(signal.SIG_IGN)  # this process ends with the agent, and only SIGKILL ends it without the agent
    hosts = options.hosts.split(",")
    name = os.environ.get(options.called, "") or (hosts[place] if place < len(hosts) else "")
    try:
        status, words = _run(node_rank, name, options)
    except OSError as e:
        status, words = -1, f"its agent could not be started: {e}"
    finally:
        if options.line and place == 0:
            _remove(options.line)
    if status:
        print(f"jdist node {node_rank} ({host}): {words}", file=sys.stderr, flush=True)
    return 0


def find_place(variables: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """Index of this node among those that the launch program started."""
    return next((int(environ[v]) for v in variables if environ.get(v, "").isdecimal()), None)


def _run(node_rank: int, name: str, options: argparse.Namespace) -> tuple[int, str]:
    """Run the agent on the node that the launcher calls ``name``; returns its exit status, and how it ended."""
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
            preexec_fn=lambda: _set_signals(signal.SIG_DFL),  # noqa: PLW1509 — there is one thread here
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


def _set_signals(handler: signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handler)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as e:
        if os.path.exists(path):
            print(f"jdist: {path} is not needed any more and could not be removed: {e}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
