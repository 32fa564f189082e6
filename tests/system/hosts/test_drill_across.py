"""The drill across hosts: with nodes over ssh, and with those of a Slurm job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jdist
from jdist.client.drill import TRIALS, Drill, run_drills
from jdist.client.threads import bridge
from support.hosts.namespaces import Bed
from support.hosts.slurmd import Slurm
from support.hosts.sshd import Sshd
from support.waits import eventually

ROOT = Path(jdist.__file__).parents[1]


def drilled(**options: Any) -> Drill:
    (drill,) = bridge().call(run_drills(["gloo"], lambda _: None, timeout=90, **options))
    return drill


def expect_all_held(drill: Drill, hosts: list[str]) -> None:
    assert drill.trouble == ""
    assert list(drill.hosts) == hosts
    assert [trial.fault for trial in drill.trials] == list(TRIALS)
    for trial in drill.trials:
        assert trial.result == "held", trial
        assert trial.note == "", trial
        assert trial.kept == trial.expected >= 1, trial


def test_over_ssh(logins: Sshd, hosts: Bed, traces: Any) -> None:
    a, b, _ = (node.name for node in hosts.nodes)
    env = {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}
    expect_all_held(drilled(launcher="ssh", hosts="a:2,b:1", env=env), [a, b])


def test_in_a_slurm_job(slurm: Slurm, hosts: Bed, traces: Any) -> None:
    a, b, _ = (node.name for node in hosts.nodes)
    expect_all_held(drilled(launcher="slurm", nproc_per_node="2,1", nnodes=2), [a, b])
    assert eventually(lambda: not slurm.jobs(), 20)
