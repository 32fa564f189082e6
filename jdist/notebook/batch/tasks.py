"""Tasks: several processes of `jdist run` that a launcher such as mpirun has started together are one job.

The first is the job, and its cluster's nodes or ranks are all of them. They meet at a file in Jupyter's runtime
directory with the cluster's join line, so their hosts must share it.
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

_WAIT = "300"  # Seconds for the first to write the line.
_LEAVE = 5.0  # Seconds for the first task's own node to end with the cluster.
# What is the same in all tasks that were started together, and in no others.
_MARKS: Mapping[str, tuple[str, ...]] = {
    "mpirun": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
}


def meeting_place(task: LauncherTask, environ: Mapping[str, str]) -> Path:
    """The file at which the tasks meet. Raises UsageError for a launcher whose tasks cannot be told from others."""
    marks = [environ.get(name, "") for name in _MARKS.get(task.launcher, ())]
    if not any(marks):
        raise UsageError(
            f"jdist run: {task.launcher} has started {task.size} of it, which cannot find each other; "
            "run it once, with --launcher"
        )
    mark = hashlib.sha256("\0".join([task.launcher, *marks]).encode()).hexdigest()[:16]
    return find.directory() / f"jdist-tasks-{mark}.line"


def as_tasks(start: dict[str, Any], task: LauncherTask, place: Path) -> dict[str, Any]:
    """A start's options for the tasks: each is a node if ranks per node are given, else each is a rank."""
    if start["launcher"] != "local" or start["launcher_args"] or start["nnodes"] is not None:
        raise UsageError(f"jdist run: {task.launcher} has started it on its nodes; leave out --launcher, -N and --")
    size, nproc = task.size, start["nproc_per_node"]
    if nproc is None:
        if not task.local_size or size % task.local_size:
            raise UsageError(
                f"jdist run: {task.launcher} has not started the same number of tasks on each node; start one on each, "
                "and say with -n how many ranks that is to have"
            )
        size, nproc = size // task.local_size, task.local_size
    own = {"launcher": "join", "launcher_args": ["--file", str(place)], "nnodes": size, "nproc_per_node": nproc}
    return {**start, **own, "bind_host": start["bind_host"] or "*"}


def _join_words(place: Path, *more: str) -> list[str]:
    return [sys.executable, "-P", "-m", "jdist", "join", "--wait", _WAIT, *more, str(place)]


def become_node(place: Path) -> NoReturn:
    """Be a node's agent, or a rank's, from here on."""
    os.execv(sys.executable, _join_words(place))


def start_own_node(place: Path) -> subprocess.Popen[bytes]:
    """The first task is a node as well, in a process that ends with this one."""
    return subprocess.Popen(_join_words(place, "--until", str(os.getpid())), stdin=subprocess.DEVNULL)


def end_own_node(node: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended with its cluster; it may still wait for one that has not started."""
    try:
        node.wait(_LEAVE)
    except subprocess.TimeoutExpired:
        node.terminate()
        node.wait()
