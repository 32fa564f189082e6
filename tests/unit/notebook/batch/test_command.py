"""The command line of `jdist run`: whose its words are, and which cluster it means."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.core.errors import UsageError
from jdist.notebook.batch import command
from jdist.notebook.batch.command import OnRunning, run_command, split
from jdist.notebook.batch.job import Job

TASK = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
MPIRUN = {f"OMPI_COMM_WORLD_{name}": value for name, value in TASK.items()}
STARTED = -7
"""What `run_job` gives here in place of a job's exit code."""


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were begun."""
    found: list[Job] = []

    def run_job(job: Job) -> int:
        found.append(job)
        return STARTED

    monkeypatch.setattr(command, "run_job", run_job)
    return found


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The clusters that run, by name."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(command.find, "here", lambda: dict(found))
    return found


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The clusters that run at other hosts, by their names here."""
    found: dict[str, Any] = {}

    async def list_at(host: str) -> dict[str, Any]:
        return {name: SimpleNamespace(is_here=True) for name in found if name.startswith(f"{host}:")}

    monkeypatch.setattr(command, "list_at", list_at)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delenv("JDIST_AT", raising=False)
    return found


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return "train.py"


@pytest.mark.parametrize(
    ("words", "own", "launcher", "script"),
    [
        ("train.py", "", "", "train.py"),
        ("-n 4 train.py -n 5 --help -- x", "-n 4", "", "train.py -n 5 --help -- x"),
        ("-n4 --env A=b.py train.py", "-n4 --env A=b.py", "", "train.py"),
        ("--name=x.py --hold train.py", "--name=x.py --hold", "", "train.py"),
        ("-m pkg.train --lr 1", "-m", "", "pkg.train --lr 1"),
        ("-N 2 -- --partition=gpu train.py -- y", "-N 2", "--partition=gpu", "train.py -- y"),
        ("-N 2 -- --comment x.py train.py", "-N 2", "--comment", "x.py train.py"),
        ("-N 2 -- --comment=x.py -- train.py", "-N 2", "--comment=x.py", "train.py"),
        ("-m -- --a x.py -- pkg.train", "-m", "--a x.py", "pkg.train"),
    ],
)
def test_whose_the_words_are(words: str, own: str, launcher: str, script: str) -> None:
    line = split(words.split())
    assert (line.own, line.launcher, line.script) == (own.split(), launcher.split(), script.split())


@pytest.mark.parametrize(
    ("words", "environ", "runs", "starts"),
    [
        ("train.py", {}, False, True),
        ("train.py", {}, True, False),
        ("-t 5 train.py", {}, True, False),
        ("-n 2 train.py", {}, True, True),
        ("--hold train.py", {}, True, True),
        ("--hold-for 2h train.py", {}, True, True),
        ("-- --partition=gpu train.py", {}, True, True),
        ("train.py", {"SLURM_JOB_ID": "7"}, True, True),
        ("train.py -r 1 --cluster c1", {"SLURM_JOB_ID": "7"}, True, True),
        ("-r 1 train.py", {"SLURM_JOB_ID": "7"}, True, False),
        ("--cluster c1 train.py", {"SLURM_JOB_ID": "7"}, True, False),
        ("--cluster c1 --hold train.py", {}, True, False),
    ],
)
def test_which_cluster_is_meant(
    words: str,
    environ: dict[str, str],
    runs: bool,
    starts: bool,
    jobs: list[Job],
    running: dict[str, Any],
    script: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if runs:
        running["c1"] = None
    found = run_command(words.split(), environ)
    assert (found == STARTED) is starts
    assert len(jobs) == starts
    said = capsys.readouterr().err
    assert ("--cluster c1 selects the running one" in said) is (words.startswith("train.py") and bool(environ))


def test_a_task_never_uses_the_cluster_that_the_first_task_has_started(
    jobs: list[Job], running: dict[str, Any], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Became(Exception):
        pass

    def become_node(place: Path) -> None:
        raise Became(place)

    monkeypatch.setattr(command, "become_node", become_node)
    running["c1"] = None
    with pytest.raises(Became):
        run_command([script], {**MPIRUN, "PMIX_NAMESPACE": "7"})


def test_the_words_of_a_run_on_a_running_cluster(running: dict[str, Any], script: str) -> None:
    words = ["-r", "0", "--cluster", "c1", "--hold", script, "--cluster", "c2"]
    assert run_command(words, {}) == OnRunning("c1", ["-r", "0", "--hold", script, "--cluster", "c2"])
    assert run_command(["--cluster=c1", script], {}) == OnRunning("c1", [script])


@pytest.mark.parametrize(
    ("words", "variable", "used"),
    [
        ("--at a", "", OnRunning("a:c2", ["train.py"])),
        ("", "a", OnRunning("a:c2", ["train.py"])),
        ("--at=a --python ml -t 5 --install", "b", OnRunning("a:c2", ["-t", "5", "train.py"])),
        ("--at a -r 0", "", OnRunning("a:", ["-r", "0", "train.py"])),
        ("--cluster a:c3", "b", OnRunning("a:c3", ["train.py"])),
        ("--cluster c3", "b", OnRunning("b:c3", ["train.py"])),
        ("--at= --cluster c3", "b", OnRunning("c3", ["train.py"])),
        ("--at b", "", None),
        ("-n 2 --at a", "", None),
    ],
)
def test_which_cluster_of_another_host_is_meant(
    words: str,
    variable: str,
    used: OnRunning | None,
    jobs: list[Job],
    there: dict[str, Any],
    script: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there["a:c2"] = there["a:c3"] = None
    if variable:
        monkeypatch.setenv("JDIST_AT", variable)
    found = run_command([*words.split(), script], {})
    assert found == (used or STARTED)
    assert [job.at for job in jobs] == ([] if used else [words.split()[words.split().index("--at") + 1]])


def test_a_job_elsewhere_takes_that_hosts_hostfile_and_sends_what_is_beside_the_script(
    jobs: list[Job], there: dict[str, Any], script: str, tmp_path: Path
) -> None:
    assert run_command(["--at", "a", "--hostfile", "/there/hosts", "--output-lines", "9", script], {}) == STARTED
    assert (jobs[0].at, jobs[0].hostfile, jobs[0].start["hosts"]) == ("a", "/there/hosts", "")
    assert jobs[0].start["output_lines"] == 9
    assert sys.path[-1] == str(tmp_path)


def test_what_a_job_is_made_of(jobs: list[Job], running: dict[str, Any], script: str, tmp_path: Path) -> None:
    words = "-n 4 --start-timeout 1m -t 2m --hold --hold-for 3h --launcher slurm -- -p gpu -- train.py a"
    assert run_command(words.split(), {}) == STARTED
    job = jobs[0]
    assert (job.holds, job.hold_for, job.timeout) == (True, 3 * 3600.0, 120.0)
    given = ("nproc_per_node", "timeout", "launcher", "launcher_args")
    assert [job.start[name] for name in given] == ["4", 60.0, "slurm", ["-p", "gpu"]]
    assert str(tmp_path / "train.py") in job.cell
    assert "['a']" in job.cell
    run_command(["-n", "1", "-m", "pkg.train", "--lr", "1"], {})
    assert "'pkg.train', ['--lr', '1'], globals(), " in jobs[1].cell


@pytest.mark.parametrize(
    ("words", "environ", "says"),
    [
        ("", {}, "no script was given"),
        ("-n 2", {}, "no script was given"),
        ("-n 2 nowhere.py", {}, "there is no script 'nowhere.py'"),
        ("-n 2 train", {}, "-m runs a module"),
        ("-n 2 -r 1 train.py", {}, "--ranks is for a running cluster and --nproc-per-node for a new one"),
        ("--cluster c1 --hold-for 1h train.py", {}, "--hold-for for a new one"),
        ("--hold-fro 1h train.py", {}, "did you mean --hold-for?"),
        ("-n 2 -- --partition gpu", {}, "followed by SCRIPT.py"),
        ("train.py", {"PMI_RANK": "1", "PMI_SIZE": "4"}, "mpiexec started 4 copies of this command"),
        ("--at a train.py", MPIRUN, "mpirun started 2 copies of this command, which would be the nodes; run it once"),
        ("-n 2 --install train.py", {}, "--install: jdist is installed at a host behind ssh: add --at HOST"),
    ],
)
def test_what_is_refused(
    words: str,
    environ: dict[str, str],
    says: str,
    jobs: list[Job],
    running: dict[str, Any],
    there: dict[str, Any],
    script: str,
) -> None:
    with pytest.raises(UsageError, match=says):
        run_command(words.split(), environ)
    assert not jobs
