"""Slurm's command lines, and the script of a job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jdist.core.errors import UsageError
from jdist.core.settings import Host, Settings
from jdist.launch.launch_program import node_command
from jdist.launch.slurm import (
    SlurmLauncher,
    asked_nodes,
    batch_command,
    batch_script,
    option,
    step_command,
    step_environment,
)

LINE = "jdist-of-keys'$(touch /tmp/never)"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--nodes=2", "2"),
        ("--nodes 2", "2"),
        ("-N 2", "2"),
        ("-N2", "2"),
        ("-N 2 --nodes=3", "3"),
        ("-n 4", ""),
        ("-N", ""),
    ],
)
def test_an_option_in_any_of_its_forms(words: str, value: str) -> None:
    assert option(words.split(), "--nodes", "-N") == value


def test_a_range_of_nodes_is_no_number() -> None:
    assert asked_nodes(["-p", "gpu", "-N4"]) == 4
    with pytest.raises(UsageError, match="--nodes=2-4: jdist needs to know how many"):
        asked_nodes(["--nodes=2-4"])


def test_a_step_takes_its_nodes_whole_and_leaves_others_alone() -> None:
    command = step_command("7", ["a", "b"], ["agent"], ["--gres=gpu:2"], "jdist-c-1")
    assert command[0] == "srun"
    assert command[-1] == "agent"
    for word in ("--jobid=7", "--overlap", "--nodes=2", "--ntasks=2", "--nodelist=a,b", "--cpu-bind=none", "--mem=0"):
        assert word in command
    assert command.index("--gres=gpu:2") < command.index("--job-name=jdist-c-1")
    assert not [w for w in step_command("7", 3, ["agent"]) if w.startswith(("--nodelist", "--job-name"))]


def test_the_users_arguments_may_say_all_but_number_and_name() -> None:
    command = batch_command(["--output=mine", "-N", "9", "--job-name=theirs"], 3, "jdist-c-1")
    assert option(command, "--output") == "mine"
    assert option(command, "--nodes", "-N") == "3"
    assert option(command, "--job-name", "-J") == "jdist-c-1"


def test_the_script_gives_the_line_to_the_step_and_the_step_nothing_of_the_jobs_defaults(tmp_path: Path) -> None:
    """With a program in srun's place that says what it is given."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\necho "$@"\nenv\necho "read $(cat)"\n')
    srun.chmod(0o755)
    log = tmp_path / "the log"
    log.touch()
    script = batch_script(node_command("SLURM_NODEID", 2, fork=False), 3, {"V": "a 'b'"}, str(log), LINE)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "4711", "SLURM_NTASKS": "9", "SLURM_CONF": "/c"}
    subprocess.run(["sh"], input=script, text=True, env=env, check=True)
    said = log.read_text().splitlines()
    assert said[0].startswith("--jobid=4711 --overlap --nodes=3 --ntasks=3 ")
    assert said[0].endswith("-m jdist.launch.node_runner --place SLURM_NODEID --first 2 --no-fork")
    assert {"V=a 'b'", "SLURM_CONF=/c"} <= set(said)
    assert not [w for w in said if w.startswith(("SLURM_NTASKS", "SLURM_JOB_ID"))]
    assert said[-1] == f"read {LINE}"
    assert not [w for w in said[:-1] if LINE in w], "the line is no argument and no variable"


def test_a_script_whose_log_is_not_there_goes_on_without(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\ncat\n")
    srun.chmod(0o755)
    script = batch_script(["agent"], 1, {}, str(tmp_path / "no" / "log"), LINE)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1"}
    assert (
        subprocess.run(["sh"], input=script, text=True, env=env, check=True, capture_output=True).stdout == f"{LINE}\n"
    )


def test_earlier_defaults_of_slurm_are_left_out() -> None:
    env = {"PATH": "p", "SLURM_CONF": "c", "SLURM_NTASKS": "1", "SBATCH_PARTITION": "x", "SRUN_CPUS_PER_TASK": "2"}
    assert step_environment(env) == {"PATH": "p", "SLURM_CONF": "c"}


def test_outside_of_jobs_the_arguments_say_how_many_nodes_and_the_name_is_the_clusters_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    settings = Settings(name="c", nnodes=0, launcher="slurm", launcher_args=("-N", "4", "-J", "theirs"))
    first, second = (SlurmLauncher.complete(settings) for _ in range(2))
    assert first.nnodes == 4
    assert option(first.launcher_args, "--job-name", "-J").startswith("jdist-c-")
    assert first.launcher_args != second.launcher_args
    with pytest.raises(UsageError, match="for --launcher ssh and mpi"):
        SlurmLauncher.complete(Settings(name="c", launcher="slurm", hosts=(Host("a"),)))
