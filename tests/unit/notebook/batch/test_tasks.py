"""Tasks of a launcher that run `jdist run`: how many nodes and ranks they are, and where they meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jdist.core.errors import UsageError
from jdist.core.messages.membership import LauncherTask
from jdist.notebook.batch.job import as_tasks, meeting_place

START = {"launcher": "local", "nnodes": None, "nproc_per_node": None, "bind_host": "", "launcher_args": []}
PLACE = Path("/a/place")


def task(size: int, local_size: int = 0) -> LauncherTask:
    return LauncherTask("mpirun", 1, size, 1, local_size)


@pytest.mark.parametrize(
    ("size", "local_size", "nproc", "world"),
    [(4, 4, None, (1, 4)), (4, 2, None, (2, 2)), (2, 1, None, (2, 1)), (2, 1, "8", (2, "8")), (3, 0, "2", (3, "2"))],
)
def test_each_is_a_rank_or_a_node(size: int, local_size: int, nproc: Any, world: Any) -> None:
    start = as_tasks({**START, "nproc_per_node": nproc}, task(size, local_size), PLACE)
    assert (start["nnodes"], start["nproc_per_node"]) == world
    assert (start["launcher"], start["launcher_args"], start["bind_host"]) == ("join", ["--file", "/a/place"], "*")


@pytest.mark.parametrize(
    ("options", "size", "local_size", "says"),
    [
        ({}, 3, 2, "did not start the same number of tasks on each node"),
        ({}, 3, 0, "did not start the same number of tasks on each node"),
        ({"launcher": "ssh"}, 4, 2, "omit --launcher, -N"),
        ({"launcher_args": ["-x"]}, 4, 2, "omit --launcher, -N"),
        ({"nnodes": 2}, 4, 2, "omit --launcher, -N"),
    ],
)
def test_what_is_refused(options: dict[str, Any], size: int, local_size: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        as_tasks({**START, **options}, task(size, local_size), PLACE)


def test_tasks_meet_with_those_of_their_own_step() -> None:
    steps = [{"SLURM_JOB_ID": job, "SLURM_STEP_ID": step} for job in ("7", "8") for step in ("0", "1")]
    srun = LauncherTask("srun", 1, 4)
    assert len({meeting_place(srun, environ) for environ in steps}) == 4
    assert meeting_place(srun, steps[0]) == meeting_place(LauncherTask("srun", 3, 4), dict(steps[0]))
