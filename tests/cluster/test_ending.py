"""The end of ranks: what a kernel does at its end is done there, too, within a deadline, whatever ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import jdist
from jdist.core.messages.status import Notice
from jdist.wire.processes import has_ended
from support import anatomy
from support.jobs import Jobs, jobs_in
from support.waits import eventually

Start = Callable[..., jdist.Cluster]
GRACE = 5.0
"""Seconds in which a rank whose end is held up by nothing ends on a busy machine."""

LEAVES_THINGS = """
import atexit, csv, pathlib, sys, tempfile, threading, time, zipfile
folder = pathlib.Path({folder!r})
atexit.register(lambda: (folder / f"exit-{{rank}}").write_text("done"))
left_open = open(folder / f"open-{{rank}}", "w")
left_open.write("the end of the log")
rows = csv.writer(open(folder / f"rows-{{rank}}.csv", "w", newline=""))
rows.writerow(["step", 1])
archive = zipfile.ZipFile(folder / f"archive-{{rank}}.zip", "w")
archive.writestr("name", "content")
sys.modules["helper_of_test"] = helper = type(sys)("helper_of_test")
helper.__file__, helper.log = str(folder / "helper_of_test.py"), open(folder / f"module-{{rank}}", "w")
helper.log.write("of a module")
scratch = tempfile.TemporaryDirectory(prefix=f"scratch-{{rank}}-", dir=folder)
def finish():
    time.sleep(0.3)
    (folder / f"thread-{{rank}}").write_text("done")
threading.Thread(target=finish).start()
class Resource:
    def __init__(self, path):
        self.path = path
    def __del__(self):
        self.path.write_text("done")
resource = Resource(folder / f"released-{{rank}}")
"""


def check_all_was_done(folder: Path, rank: int) -> None:
    assert (folder / f"exit-{rank}").read_text() == "done"
    assert (folder / f"open-{rank}").read_text() == "the end of the log"
    assert (folder / f"rows-{rank}.csv").read_text().split() == ["step,1"]
    assert (folder / f"archive-{rank}.zip").read_bytes().count(b"content") == 1
    assert b"PK\x05\x06" in (folder / f"archive-{rank}.zip").read_bytes(), "the archive has its directory"
    assert (folder / f"module-{rank}").read_text() == "of a module"
    assert (folder / f"thread-{rank}").read_text() == "done"
    assert (folder / f"released-{rank}").read_text() == "done"
    assert not list(folder.glob(f"scratch-{rank}-*"))


def stop(cluster: jdist.Cluster) -> None:
    cluster.stop()


def restart(cluster: jdist.Cluster) -> None:
    cluster.restart()


def remove(cluster: jdist.Cluster) -> None:
    cluster.remove([1, 2])


@pytest.mark.parametrize(
    ("end", "fork", "ended"),
    [(stop, True, (0, 1, 2)), (stop, False, (0, 1, 2)), (restart, True, (0, 1, 2)), (remove, True, (1, 2))],
)
def test_ranks_end_as_kernels_do(
    fresh_cluster: Start, tmp_path: Path, end: Callable[[jdist.Cluster], None], fork: bool, ended: tuple[int, ...]
) -> None:
    own = fresh_cluster(3, fork=fork)
    own.run(LEAVES_THINGS.format(folder=str(tmp_path)))
    end(own)
    for rank in ended:
        assert eventually((tmp_path / f"module-{rank}").read_text), "the last thing that is done"
        check_all_was_done(tmp_path, rank)


def test_ranks_of_a_node_that_leaves_end_as_kernels_do(fresh_cluster: Start, tmp_path: Path) -> None:
    own = fresh_cluster("1,1", 2)
    own.run(LEAVES_THINGS.format(folder=str(tmp_path)))
    os.kill(anatomy.agent(own, 1), signal.SIGTERM)
    assert eventually(lambda: not own.nodes[1])
    assert eventually((tmp_path / "module-1").read_text)
    check_all_was_done(tmp_path, 1)
    assert not (tmp_path / "exit-0").exists()


@pytest.mark.parametrize("by", ["SIGTERM", "remove"])
def test_a_node_that_leaves_has_its_time_and_does_not_come_back(fresh_cluster: Start, tmp_path: Path, by: str) -> None:
    """Its agent lives for several heartbeats after the controller has given up its place."""
    own = fresh_cluster("1,1", 2)
    file, agent = tmp_path / "exit", anatomy.agent(own, 1)
    touch = f"import atexit, pathlib, time; atexit.register(pathlib.Path({str(file)!r}).touch)"
    own.run(f"{touch}; atexit.register(time.sleep, 4)  # which comes first", ranks=[1])
    if by == "remove":
        own.remove([1])
    else:
        os.kill(agent, signal.SIGTERM)
    assert eventually(lambda: not any(own.nodes[1:]))
    assert eventually(lambda: has_ended(agent) or any(own.nodes[1:]))
    assert not any(own.nodes[1:])
    assert file.exists()


def test_stop_now_leaves_all_that_out(fresh_cluster: Start, tmp_path: Path) -> None:
    own = fresh_cluster(2)
    own.run(LEAVES_THINGS.format(folder=str(tmp_path)))
    own.stop(now=True)
    assert not list(tmp_path.glob("exit-*"))


def test_what_exit_functions_print_belongs_to_the_last_cell(fresh_cluster: Start) -> None:
    own = fresh_cluster(2)
    own.run("import atexit; atexit.register(lambda: print('bye', rank))")
    run = own.run("1")
    late: list[Any] = []
    run.on_late = late.append
    own.stop()
    items = [item for message in late for item in message.items]
    assert {item.ranks: item.text for item in items} == {(0,): "bye 0\n", (1,): "bye 1\n"}


def test_who_takes_too_long_is_named_with_what_was_cut_off(fresh_cluster: Start, tmp_path: Path) -> None:
    own = fresh_cluster(4, end_grace=GRACE)
    notices: list[str] = []
    own.asynchronous.watch(lambda message: notices.append(message.text) if isinstance(message, Notice) else None)
    code = dedent(f"""
        import atexit, pathlib, threading, time
        atexit.register(lambda: pathlib.Path({str(tmp_path)!r}, f"exit-{{rank}}").write_text("done"))
        def slow_exit():
            time.sleep(100)
        def write_all():
            time.sleep(100)
        class Slow:
            def __init__(self):
                self.sleep = time.sleep
            def __del__(self):
                self.sleep(100)
        if rank == 0:
            atexit.register(slow_exit)
        if rank == 1:
            threading.Thread(target=write_all, name="writer").start()
        if rank == 2:
            slow = Slow()
    """)
    own.run(code)
    began = time.monotonic()
    own.stop()
    assert time.monotonic() - began > GRACE
    text = {next(r for r in range(4) if f"rank {r} " in line): line for line in notices if "was killed" in line}
    assert sorted(text) == [0, 1, 2]
    assert "slow_exit" in text[0]
    assert "writer" in text[1]
    assert "write_all" in text[1]
    assert "__del__" in text[2]
    assert [(tmp_path / f"exit-{rank}").exists() for rank in range(4)] == [False, False, True, True]


def test_ranks_that_are_busy_stuck_or_paused_are_freed_before_they_end(fresh_cluster: Start, tmp_path: Path) -> None:
    own = fresh_cluster(4)
    code = dedent(f"""
        import atexit, pathlib, time
        def note(what):
            pathlib.Path({str(tmp_path)!r}, f"{{what}}-{{rank}}").write_text("done")
        atexit.register(note, "exit")
        if rank == 0:
            dist.all_reduce(torch.ones(1))
        elif rank == 1:
            try:
                time.sleep(100)
            finally:
                note("finally")
        elif rank == 2:
            breakpoint()
        else:
            while True:
                try:
                    time.sleep(100)
                except BaseException:
                    note("swallowed")
    """)
    run = own.run(code, background=True)
    inside = {0: "dist.all_reduce(torch.ones(1))", 1: "time.sleep(100)", 3: "time.sleep(100)"}
    assert eventually(lambda: all(line in own.stack(rank) for rank, line in inside.items()))
    assert eventually(lambda: 2 in run.paused)
    own.stop()
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["exit-0", "exit-1", "exit-2", "exit-3", "finally-1", "swallowed-3"]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    yield from jobs_in(tmp_path)


def test_the_ranks_of_a_job_end_as_scripts_do(jobs: Jobs, tmp_path: Path) -> None:
    script = jobs.script(
        "train.py",
        dedent("""
            import atexit, sys, threading, time
            import torch.distributed as dist
            dist.init_process_group("gloo")
            rank = dist.get_rank()
            log = open(sys.argv[1] + f"/log-{rank}", "w")
            log.write("the last line")
            atexit.register(lambda: print("exit of", rank))
            threading.Thread(target=lambda: (time.sleep(0.3), print("thread of", rank))).start()
            print("end of", rank)
        """),
    )
    job = jobs.start("-n", "2", "--backend", "gloo", script, str(tmp_path))
    assert job.wait() == 0, job.said
    assert sorted(job.out) == [f"[{rank}] {what} of {rank}" for rank in (0, 1) for what in ("end", "exit", "thread")]
    assert [(tmp_path / f"log-{rank}").read_text() for rank in (0, 1)] == ["the last line"] * 2
