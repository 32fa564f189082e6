"""Tasks: several processes of `jdist run` that a launcher such as mpirun started together form one job.

The first one runs the job, and each of them is a node or rank of its cluster. They find each other through a file with
the cluster's join line in Jupyter's runtime directory, so their hosts must share that directory.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from jdist.client import find
from jdist.core.errors import UsageError
from jdist.core.messages.membership import LauncherTask

_WAIT = "300"  # Seconds for the first task to write the line.
_LEAVE = 5.0  # Seconds for the first task's own node to end with the cluster.
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
        node.wait(_LEAVE)
    except subprocess.TimeoutExpired:
        node.terminate()
        node.wait()
