"""Jobs: `jdist run` starts a cluster, runs a script on it, ends with the script's exit code, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jdist
from jdist.client import find
from support.jobs import Jobs, jobs_in
from support.waits import eventually

BY_RANK = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("begun", sys.argv[1:], flush=True)
print("to stderr", rank, file=sys.stderr)
exec(sys.argv[1 + rank])
dist.destroy_process_group()
"""
BARRIER = "dist.barrier()"


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    yield from jobs_in(tmp_path)


@pytest.fixture
def script(jobs: Jobs) -> str:
    """Its argument number R is run on rank R."""
    return jobs.script("by_rank.py", BY_RANK)


def left() -> set[str]:
    """Files of clusters; earlier tests' logs may be among them, which a job whose cluster has the name takes over."""
    return {p.name for p in find.directory().glob("jdist-*")} - {"jdist-shared.log"}


def test_a_script_and_a_module_from_start_to_end(jobs: Jobs, script: str) -> None:
    before = left()
    job = jobs.start("-n", "2", "--backend", "gloo", script, "pass", "pass", "--", "-n", "3", "--help")
    assert job.wait() == 0, job.said
    assert job.out in (
        ["[0-1] begun ['pass', 'pass', '--', '-n', '3', '--help']"],
        [f"[{r}] begun ['pass', 'pass', '--', '-n', '3', '--help']" for r in (0, 1)],
        [f"[{r}] begun ['pass', 'pass', '--', '-n', '3', '--help']" for r in (1, 0)],
    )
    assert {"[0] to stderr 0", "[1] to stderr 1"} < set(job.err)
    assert any("2 ranks on 1 node" in line for line in job.err)
    assert left() <= before

    (jobs.directory / "pkg").mkdir()
    jobs.script("pkg/__init__.py", "name = 'a package'")
    jobs.script("pkg/train.py", "import sys, pkg\nprint(__name__, pkg.name, sys.argv[1:])\nsys.exit(5)")
    job = jobs.start("-n", "1", "-m", "pkg.train", "--lr", "1")
    assert job.wait() == 5, job.said
    assert job.out == ["[0] __main__ a package ['--lr', '1']"]
    assert left() <= before


@pytest.mark.parametrize(
    ("on_rank_1", "code", "says"),
    [
        ("sys.exit(3)", 3, "ScriptExit"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("os.kill(os.getpid(), 9)", 137, "killed by signal 9"),
    ],
)
def test_a_rank_that_fails_ends_the_job_with_its_code(
    jobs: Jobs, script: str, on_rank_1: str, code: int, says: str
) -> None:
    job = jobs.start("-n", "2", script, BARRIER, on_rank_1)
    assert job.wait() == code, job.said
    assert says in job.said
    assert "is fresh" not in job.said


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_a_job_prints_what_its_streams_can_show(
    jobs: Jobs, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PYTHONUTF8": "0", **variables}.items():
        monkeypatch.setenv(name, value)
    fork = "import os\nif os.fork() == 0:\n    print('\\u20ac', 'child')\n    os._exit(0)\nos.wait()\n"
    text = f"{fork}print('\\u25cf \\u20ac', 'begun')\nraise ValueError('\\u2026 \\udcff')\n"
    job = jobs.start("-n", "2", "--backend", "gloo", jobs.script("prints.py", text))
    assert job.wait() == 1, job.said
    for line in ("? ? begun", "? child"):
        assert f"[0-1] {line}" in job.out or {f"[0] {line}", f"[1] {line}"} <= set(job.out)
    assert "ValueError" in job.said
    assert "UnicodeEncodeError" not in job.said


@pytest.mark.parametrize("words", ["status", "list", "resources", "vars", "groups", "doctor", "logs 0"])
def test_each_command_prints_what_its_streams_can_show(cluster: jdist.Cluster, words: str) -> None:
    command = [sys.executable, "-P", "-m", "jdist", *words.split()]
    if words != "list":
        command += ["--cluster", cluster.name]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_script_that_cannot_be_begun_shows_its_own_lines_only(jobs: Jobs) -> None:
    broken = jobs.script("broken.py", "print('a'\n")
    imports = jobs.script("imports.py", "x = 1\nimport broken\n")
    for script, at in ((broken, "broken.py line 1: print('a'"), (imports, "imports.py line 2: import broken")):
        job = jobs.start("-n", "1", "--backend", "gloo", script)
        assert job.wait() == 1, job.said
        assert at in job.said
        assert "SyntaxError: '(' was never closed" in job.said
        for internal in ("interactiveshell.py", "run_script", "worker/cells", "runpy"):
            assert internal not in job.said
    job = jobs.start("-n", "1", "--backend", "gloo", "-m", "no_such_module")
    assert job.wait() == 1, job.said
    assert "script.py" not in job.said


def test_a_job_that_has_no_end_of_its_own_is_ended(jobs: Jobs, script: str) -> None:
    busy = jobs.start("-n", "2", "--name", "busy", script, "import time; time.sleep(1000)", "1 / 0")
    stuck = jobs.start("-n", "2", "--name", "stuck", script, BARRIER, "pass")
    assert stuck.wait() == 1, stuck.said
    assert "has not entered barrier" in stuck.said
    assert "it is being stopped" in stuck.said
    assert "did not finish" not in stuck.said
    assert "jdist interrupt" not in stuck.said
    assert "by_rank.py:" in stuck.said
    assert "rank 1 finished the script" in stuck.said
    assert busy.wait() == 1, busy.said
    assert "the others kept running" in busy.said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_the_job_and_its_cluster(jobs: Jobs, number: signal.Signals, code: int) -> None:
    begun = "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(1000)\nfinally:\n    print('cleaned up')"
    job = jobs.start("-n", "2", jobs.script("sleeps.py", begun))
    job.until("begun")
    job.signal(number)
    assert job.wait() == code, job.said
    if number != signal.SIGKILL:
        assert "cleaned up" in "".join(job.out)


def test_a_signal_before_the_world_is_formed_ends_the_start(jobs: Jobs, script: str) -> None:
    job = jobs.start("-n", "1", "-N", "2", "--launcher", "join", script, "pass", "pass")
    job.until("jdist join")
    job.signal(signal.SIGTERM)
    assert job.wait() == 143, job.said


def test_a_start_that_fails_runs_nothing(jobs: Jobs, script: str) -> None:
    job = jobs.start("-n", "1", "-N", "2", "--launcher", "join", "--start-timeout", "2", script, "pass")
    assert job.wait() == 1, job.said
    assert "0 of 2 nodes here" in job.said
    assert not job.out


def test_a_failed_job_is_held_in_its_frames_until_a_user_lets_it_go(jobs: Jobs) -> None:
    text = (
        "import sys, torch.distributed as dist\ndef part(rank):\n    found = rank * 10\n    if found: sys.exit(found)\n"
    )
    job = jobs.start(
        "-n", "2", "--name", "held", "--hold", jobs.script("a.py", f"{text}part(dist.get_rank())\n{BARRIER}")
    )
    job.until("rank 1 paused at part, a.py line 4 .held after a failure.: ScriptExit: .*a.py exited with 10")
    job.until("%dist attach held")
    own = jdist.attach("held")
    assert eventually(lambda: own.facts.paused == (1,))
    assert own.run("found, rank", ranks=[1], timeout=30).values == {1: (10, 1)}
    own.resume()
    assert job.wait() == 10, job.said
    own.detach()


def test_a_breakpoint_pauses_a_job_and_so_does_a_user(jobs: Jobs) -> None:
    loop = "def loop():\n    go_on = True\n    while go_on: time.sleep(0.01)\n"
    text = f"import time\n{loop}value = 3\nbreakpoint()\nprint('value', value, flush=True)\nloop()\nprint('over')"
    job = jobs.start("-n", "2", "--name", "looked-into", jobs.script("b.py", text))
    job.until("paused at .* b.py line [67] .at a breakpoint.")  # of one rank, where the other is later
    own = jdist.attach("looked-into")
    assert eventually(lambda: own.facts.paused == (0, 1))
    own.run("value = 4", timeout=30)
    own.resume()
    job.until("value 4")
    assert eventually(lambda: all("while go_on" in own.stack(rank) for rank in (0, 1)))
    own.pause()
    job.until("paused at loop, b.py line 4 .on request.")
    assert eventually(lambda: own.facts.paused == (0, 1))
    own.run("go_on = False", timeout=30)
    own.resume()
    assert job.wait() == 0, job.said
    assert "".join(job.out).count("over") in (1, 2)
    own.detach()


def test_a_job_whose_rank_died_is_held_until_a_user_stops_its_cluster(jobs: Jobs, script: str) -> None:
    job = jobs.start("-n", "2", "--name", "held", "--hold", script, BARRIER, "os._exit(3)")
    job.until("its cluster is being held")
    job.until("%dist attach held")
    own = jdist.attach("held")
    assert own.run("rank * 10", timeout=30).values == {0: 0, 1: 10}
    own.stop()
    assert job.wait() == 3, job.said


@pytest.mark.parametrize(
    ("options", "on_rank_1", "code", "says"),
    [
        (("--hold",), "pass", 1, "the run cannot finish and is being held"),
        (("--hold",), "sys.exit(6)", 6, "rank 1 paused at .*by_rank.py|rank 1 paused at <string>"),
        ((), "breakpoint()", 1, "at a breakpoint"),
    ],
)
def test_the_time_of_a_hold_is_bounded(
    jobs: Jobs, script: str, options: tuple[str, ...], on_rank_1: str, code: int, says: str
) -> None:
    job = jobs.start("-n", "2", *options, "--hold-for", "1s", script, BARRIER, on_rank_1)
    job.until(says)
    assert job.wait() == code, job.said
    assert "the --hold-for time is over" in job.said


def test_a_run_on_a_running_cluster_ends_with_the_scripts_code(cluster: jdist.Cluster, jobs: Jobs, script: str) -> None:
    words = ("--cluster", cluster.name, "-r", "0-1", script)
    assert jobs.start(*words, "pass", "sys.exit(4)").wait() == 4
    job = jobs.start(*words, "kept_by_job = 1", "pass")
    assert job.wait() == 0, job.said
    assert cluster.pull("kept_by_job", ranks=[0]) == {0: 1}


def test_in_a_job_of_a_scheduler_no_running_cluster_is_used(cluster: jdist.Cluster, jobs: Jobs, script: str) -> None:
    env = {**os.environ, "PBS_JOBID": "7"}
    job = jobs.start(script, "print(f'own:{os.environ[\"WORLD_SIZE\"]}:{os.getpid()}:')", "pass", env=env)
    assert job.wait() == 0, job.said
    assert f"--cluster {cluster.name} selects the running one" in job.said
    pids = {str(row.pid) for row in cluster.status().ranks}
    size, pid = re.search(r"own:(\d+):(\d+):", job.said).groups()  # type: ignore[union-attr]
    assert size == "2"
    assert pid not in pids
    assert eventually(lambda: set(find.connections()) == {cluster.name})
