"""Join here: this machine becomes a node of a cluster that another notebook has started."""

import os
import subprocess
import sys
import time
import uuid

from jdist.client.find import directory
from jdist.client.lifecycle.controller_process import private
from jdist.core.errors import LaunchError
from jdist.launch.support import last_words, reap
from jdist.wire.processes import has_ended
from jdist.wire.transport.invitations import JOINED, JoinLine, find_line

_WITHIN = 60.0  # Seconds for the agent to join: longer than it tries itself.


def join_here(line: str, nproc: int = 0, node_rank: int = -1, *, fork: bool = True) -> int:
    """Start an agent with a join line, or a file that holds one, and return its process id once it has joined.

    In a kernel of a Jupyter server the agent ends with that server, and outlives the kernel. Raises UsageError when
    there is no join line, LaunchError with the agent's output when it could not join.
    """
    text = find_line(line)
    cluster = JoinLine.decode(text).cluster
    # Servers may share their home: each has a log of its own.
    log = directory() / f"jdist-node-{cluster}-{node_rank if node_rank >= 0 else uuid.uuid4().hex[:8]}.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # an earlier agent of this place may still write to its own
    command = [sys.executable, "-P", "-m", "jdist", "join", "-n", str(nproc), "--node-rank", str(node_rank)]
    if not fork:
        command.append("--no-fork")
    server = os.environ.get("JPY_PARENT_PID", "")  # the Jupyter server of this kernel is its parent process
    if server.isdecimal() and not has_ended(int(server)):
        command += ["--until", server]
    with open(log, "xb", opener=private) as output:
        agent = subprocess.Popen(
            [*command, "-"], stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    reap(agent)
    assert agent.stdin is not None
    with agent.stdin:
        agent.stdin.write(text.encode() + b"\n")
    deadline = time.monotonic() + _WITHIN
    while JOINED not in (written := log.read_text(errors="replace")):
        if agent.poll() is not None:
            raise LaunchError(f"this machine did not become a node: {last_words(written)}")
        if time.monotonic() > deadline:
            agent.terminate()
            raise LaunchError(f"the controller did not let this machine in within {_WITHIN:.0f} s; see {log}")
        time.sleep(0.05)  # a change of the file triggers no event here
    return agent.pid
