"""The command line of `jdist run`: whose its words are, and which cluster it means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jdist.core.errors import UsageError
from jdist.notebook.batch import command
from jdist.notebook.batch.command import OnRunning, run_command, split
from jdist.notebook.batch.job import Job

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
    names = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    environ = {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()}
    with pytest.raises(Became):
        run_command([script], {**environ, "PMIX_NAMESPACE": "7"})


def test_the_words_of_a_run_on_a_running_cluster(running: dict[str, Any], script: str) -> None:
    words = ["-r", "0", "--cluster", "c1", "--hold", script, "--cluster", "c2"]
    assert run_command(words, {}) == OnRunning("c1", ["-r", "0", "--hold", script, "--cluster", "c2"])
    assert run_command(["--cluster=c1", script], {}) == OnRunning("c1", [script])


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
    ],
)
def test_what_is_refused(
    words: str, environ: dict[str, str], says: str, jobs: list[Job], running: dict[str, Any], script: str
) -> None:
    with pytest.raises(UsageError, match=says):
        run_command(words.split(), environ)
    assert not jobs
