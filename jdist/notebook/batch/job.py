"""Run a script on a cluster of its own, as a command with an exit code.

If a launcher such as mpirun has started several processes of `jdist run`, they form one job. The first process runs the
job, and each of them is a node or rank of its cluster. They find each other through a file with the cluster's join line
in Jupyter's runtime directory, so their hosts must share that directory.
"""

import contextlib
import hashlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from msgspec import Struct

from jdist.client import find
from jdist.client.cluster import Cluster
from jdist.client.lifecycle.start import log_path
from jdist.client.link import new_request
from jdist.client.run import CellRun
from jdist.client.threads import bridge
from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.debug import Resume
from jdist.core.messages.membership import LauncherTask
from jdist.core.messages.status import Notice, Stopped
from jdist.core.quantities import format_duration
from jdist.notebook.batch.display import BatchDisplay, ErrorScreen, tell
from jdist.notebook.batch.rules import (
    FAILED,
    SIGNALLED,
    Action,
    End,
    Held,
    HoldEnd,
    Report,
    Rules,
    exit_code,
    held_failure,
)
from jdist.notebook.session import Session
from jdist.notebook.text.markup import naming
from jdist.notebook.text.remedy_text import worded
from jdist.notebook.verbs.lifecycle import start_cluster, start_cluster_at
from jdist.wire import log

_WAIT = "300"  # Seconds for the first task to write the line.
_LEAVE_TASKS = 5.0  # Seconds for the first task's own node to end with the cluster.
# Variables that have the same value in all tasks that were started together, and in no others.
_MARKS: Mapping[str, tuple[str, ...]] = {
    "mpirun": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
}


def meeting_place(task: LauncherTask, environ: Mapping[str, str]) -> Path:
    """The file through which the tasks find each other.

    Raises UsageError for a launcher whose tasks cannot be distinguished from those of other jobs.
    """
    marks = [environ.get(name, "") for name in _MARKS.get(task.launcher, ())]
    if not any(marks):
        raise UsageError(
            f"jdist run: {task.launcher} started {task.size} copies of this command, which cannot find each "
            "other; run it once, with --launcher"
        )
    mark = hashlib.sha256("\0".join([task.launcher, *marks]).encode()).hexdigest()[:16]
    return find.directory() / f"jdist-tasks-{mark}.line"


def as_tasks(start: dict[str, Any], task: LauncherTask, place: Path) -> dict[str, Any]:
    """The options of a start for these tasks: with a number of ranks per node, each is a node; otherwise, a rank."""
    if start["launcher"] != "local" or start["launcher_args"] or start["nnodes"] is not None:
        raise UsageError(f"jdist run: {task.launcher} has already started the nodes; omit --launcher, -N and --")
    size, nproc = task.size, start["nproc_per_node"]
    if nproc is None:
        if not task.local_size or size % task.local_size:
            raise UsageError(
                f"jdist run: {task.launcher} did not start the same number of tasks on each node; start one task "
                "per node, and give the number of ranks per node with -n"
            )
        size, nproc = size // task.local_size, task.local_size
    own = {"launcher": "join", "launcher_args": ["--file", str(place)], "nnodes": size, "nproc_per_node": nproc}
    return {**start, **own, "bind_host": start["bind_host"] or "*"}


def _join_words(place: Path, *more: str) -> list[str]:
    return [sys.executable, "-P", "-m", "jdist", "join", "--wait", _WAIT, *more, str(place)]


def become_node(place: Path) -> NoReturn:
    """Replace this process with the agent of a node or rank."""
    os.execv(sys.executable, _join_words(place))


def start_own_node(place: Path) -> subprocess.Popen[bytes]:
    """Start the node of the first task, in a process that ends with this one."""
    return subprocess.Popen(_join_words(place, "--until", str(os.getpid())), stdin=subprocess.DEVNULL)


def end_own_node(node: subprocess.Popen[bytes]) -> None:
    """Wait until the node has ended with its cluster; if no cluster was started, end it."""
    try:
        node.wait(_LEAVE_TASKS)
    except subprocess.TimeoutExpired:
        node.terminate()
        node.wait()


_ENDS = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGHUP")]
_LEAVE = 20.0  # Seconds from a signal until the cluster is stopped even if the run has not ended.
_LINES = 1_000_000  # Lines shown for each stream of a rank; the rank's log has all of them.
_WHY = {
    "hang": "the run cannot finish, so it is being stopped; run it with --hold to inspect it in a notebook",
    "failure": "a rank failed and the others kept running, so they are being interrupted",
    "time": "the --hold-for time is over, so the run is being stopped",
}


class Job(Struct, frozen=True):
    """A command line: the cell that runs the script, and the cluster that is started for it."""

    cell: str
    start: dict[str, Any]  # Arguments of AsyncCluster.start.
    holds: bool = False
    hold_for: float = 8 * 3600.0
    timeout: float | None = None  # Seconds for the script.
    at: str = ""  # The host, behind ssh, at which the cluster is started; "": this one.
    hostfile: str | None = None  # A path on that host.


class EndSignal(KeyboardInterrupt):
    """A signal that is to end the job was received."""


class Signals:
    """In this context, signals that end a process raise :class:`EndSignal`; ``first`` is the first one received."""

    def __init__(self) -> None:
        self.first = 0
        self._raises = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in _ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:  # of nohup, or of a shell's background
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.first = self.first or number
        if self._raises:
            raise EndSignal

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals do not interrupt this block, which cleans up."""
        self._raises = False
        yield


def run_job(job: Job) -> int:
    """Start the cluster, run the script, show it, stop the cluster, and return the exit code.

    Raises JdistError if nothing was run.
    """
    session = Session(ErrorScreen(), {}, "command line")
    code = FAILED
    with Signals() as signals:
        try:
            cluster = _start(session, job)
            job_run = JobRun(job, cluster, signals)
            try:
                code = job_run.follow()
            finally:
                with signals.deferred():
                    _stop(cluster)
                    job_run.close()
        except KeyboardInterrupt:
            if not signals.first:
                raise
    return SIGNALLED + signals.first if signals.first else code


def _start(session: Session, job: Job) -> Cluster:
    """The cluster ends with this process, unless it is at another host, where it outlasts a computer that sleeps."""
    options = {"output_lines": _LINES, **job.start}
    if job.at:
        return start_cluster_at(session, job.at, options, job.hostfile)
    return start_cluster(session, {**options, "until": os.getpid()})


def _stop(cluster: Cluster) -> None:
    cluster.asynchronous.watch(lambda message: tell(worded(message)) if isinstance(message, Notice) else None)
    try:
        cluster.stop()
        if not os.environ.get(log.VARIABLE):
            log_path(cluster.name).unlink(missing_ok=True)
    except (JdistError, OSError) as e:
        why = worded(e) if isinstance(e, JdistError) else e
        tell(f"cluster {cluster.name} could not be stopped: {why}\n→ jdist stop {cluster.name}")


class JobRun:
    """The job's run on its cluster."""

    def __init__(self, job: Job, cluster: Cluster, signals: Signals):
        self._job = job
        self._cluster = cluster
        self._signals = signals
        self._rules = Rules(holds=job.holds, hold_for=job.hold_for)
        self._events: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._was_ended = False  # By a rule or a signal.
        self._display: BatchDisplay | None = None
        self._run: CellRun | None = None  # Held, so that what its ranks write at their end is still received.

    def close(self) -> None:
        """Show the rest of what the ranks have written; the cluster has ended."""
        if self._display is not None:
            self._display.flush()

    def follow(self) -> int:
        """Run the script to its end, hold the cluster if requested, and return the exit code."""
        job = self._job
        run = self._cluster.submit(job.cell, tuple(self._cluster.ranks), timeout=job.timeout, holds=job.holds)
        run.keeps_output = False
        display = BatchDisplay(self._cluster, run, holds=job.holds, timeout=job.timeout)
        self._display, self._run = display, run
        unwatch = self._watch_cluster()
        try:
            run.watch(self._events.put)
            self._show(run, display)
            stopped = self._cluster.asynchronous.link.lost
            display.finish(stopped)
            run.on_late = display.handle  # of exit functions, say, until the cluster has ended
            if not run.is_done:
                return FAILED
            failure = held_failure(run, self._rules.failure)
            code = exit_code(run, failure)
            if code and job.holds and failure is None and not (self._was_ended or stopped):
                self._hold_cluster()
            return code
        finally:
            unwatch()

    def _watch_cluster(self) -> Any:
        def on_message(message: Message) -> None:
            if isinstance(message, Notice | Stopped):
                self._events.put(message)

        return self._cluster.asynchronous.watch(on_message)

    def _show(self, run: CellRun, display: BatchDisplay) -> None:
        """Show the run until it is over. A signal interrupts the run, which then has some time to end."""
        leave: float | None = None
        while True:
            try:
                now = time.monotonic()
                if leave is not None and now >= leave:
                    return
                for action in self._rules.due(now):
                    self._carry_out(action, run)
                deadlines = (t for t in (leave, self._rules.next_deadline()) if t is not None)
                wait = min(deadlines, default=None)
                with contextlib.suppress(queue.Empty):
                    event = self._events.get(timeout=None if wait is None else max(0.0, wait - now))
                    if event is None:
                        return
                    display.handle(event)
                    self._rules.feed(event, time.monotonic())
            except EndSignal:
                self._was_ended = True
                leave = leave or time.monotonic() + _LEAVE
                tell(f"{signal.Signals(self._signals.first).name}: interrupting all ranks")
                run.cancel()

    def _carry_out(self, action: Action, run: CellRun) -> None:
        match action:
            case Report(paused):
                self._report(paused)
            case Held():
                self._tell_how("the run cannot finish and is being held")
            case HoldEnd(ranks):
                tell(_WHY["time"])
                with contextlib.suppress(JdistError):
                    bridge().call(self._cluster.asynchronous.link.request(Resume(new_request(), ranks=ranks), object))
                    return
                run.cancel()
            case End(reason):
                self._was_ended = True
                tell(_WHY[reason])
                run.cancel()

    def _report(self, paused: tuple[Any, ...]) -> None:
        """Report where ranks are paused, grouped by place."""
        places: dict[tuple[str, str, str], list[int]] = {}
        for each in paused:
            error = f": {each.error}" if each.error else ""
            places.setdefault((each.reason, each.at.place, error), []).append(each.rank)
        words = {"failure": "held after a failure", "breakpoint": "at a breakpoint", "request": "on request"}
        lines = [f"⏸ {naming(r)} paused at {at} ({words.get(why, why)}){e}" for (why, at, e), r in places.items()]
        self._tell_how("\n".join(lines))

    def _tell_how(self, what: str) -> None:
        until = time.strftime("%a %H:%M:%S", time.localtime(time.time() + self._job.hold_for))
        tell(f"{what}\nheld for at most {format_duration(self._job.hold_for)}, until {until}; to inspect or end it:")
        for line in _how_to_attach(self._cluster):
            tell(f"  {line}")

    def _hold_cluster(self) -> None:
        """Keep the cluster after the end of its run until the time is up, a user stops it, or a signal is received."""
        self._tell_how("the run failed; its cluster is being held")
        end = time.monotonic() + self._job.hold_for
        with contextlib.suppress(queue.Empty):
            while not self._cluster.asynchronous.link.lost:
                event = self._events.get(timeout=max(0.0, end - time.monotonic()))
                if isinstance(event, Notice):
                    tell(worded(event))
                elif isinstance(event, Stopped):
                    return


def _how_to_attach(cluster: Cluster) -> list[str]:
    """What to type, and where."""
    attach, stop, host = f"%dist attach {cluster.name}", f"jdist stop {cluster.name}", socket.gethostname()
    where = f"in a notebook on {host}, or on any host with this home directory"
    if (behind_ssh := cluster.asynchronous.link.host) is not None:
        where = f"in a notebook on any host from which ssh reaches {behind_ssh.name}"
    elif not cluster.asynchronous.link.connection.public_port:
        where = f"in a notebook on {host} (other hosts can attach only with --bind '*')"
    width = max(len(attach), len(stop))
    return [f"→ {attach:<{width}}  {where}", f"→ {stop:<{width}}  in a shell"]
