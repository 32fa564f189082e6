"""Support for launchers: labels of what a scheduler holds, the end of an agent's log, and children without zombies."""

import asyncio
import hashlib
import re
import socket
import subprocess
import threading

from jdist.launch.base import LaunchPlan
from jdist.wire.log import without_verbose
from jdist.wire.transport.invitations import REFUSED

# Characters of the cluster's own name in a label. A scheduler appends more to a label to name its objects.
_NAME_LENGTH = 24
_LOG_LINES = 3


def label_of(plan: LaunchPlan) -> str:
    """Label of everything that a scheduler holds for one cluster, such as ``jdist-c1-5d41402a``.

    A cluster's name is unique among the clusters of one user on one host only, and a scheduler serves many users and
    hosts. The label tells those apart and follows from the plan alone, so any client on the controller's host finds
    what another client has started. Lower-case letters, digits and ``-``, at most 39 characters.
    """
    where = f"{socket.gethostname()}\0{plan.log}\0{plan.settings.name}"
    own = re.sub(r"[^a-z0-9]+", "-", plan.settings.name.lower())[:_NAME_LENGTH].strip("-")
    digest = hashlib.sha256(where.encode()).hexdigest()[:8]
    return "-".join(filter(None, ("jdist", own, digest)))


def last_words(log: str) -> str:
    """The end of a log that several agents may share, on one line. If an agent was refused, only the refusal."""
    last = without_verbose(log.strip().splitlines())[-_LOG_LINES:]
    refusals = [line[line.index(REFUSED) :] for line in last if REFUSED in line]
    return " / ".join(dict.fromkeys(refusals) or last)


def poll_pause(waited: float) -> float:
    """Seconds until a scheduler is asked again, after so many seconds of waiting: from 1 to 15."""
    return min(15.0, max(1.0, waited / 20))


def resolved(line: str) -> asyncio.Future[str]:
    """A join line that is known already, for what awaits one."""
    known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    known.set_result(line)
    return known


def reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child in a thread, so that a child that outlives its starter's interest leaves no zombie."""
    threading.Thread(target=process.wait, name=f"jdist-reap-{process.pid}", daemon=True).start()
