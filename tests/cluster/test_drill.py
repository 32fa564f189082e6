"""The drill, on this machine: every fault is caused, and ends as promised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import jdist
from jdist.client import find
from jdist.client.drill import TRIALS, options_like, run_drills
from jdist.client.threads import bridge
from jdist.core.errors import UsageError
from support.waits import eventually


def test_every_fault_ends_as_promised_on_two_nodes(tmp_path: Path) -> None:
    report = tmp_path / "drill.json"
    command = [sys.executable, "-m", "jdist", "doctor", "--drill", "-n", "2", "-N", "2", "--backend", "gloo"]
    done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(report.read_text())
    (drill,) = document["drills"]
    assert document["held"] is drill["held"] is True
    assert drill["torch"] == [torch.__version__]
    assert [trial["fault"] for trial in drill["trials"]] == list(TRIALS)
    for trial in drill["trials"]:
        assert trial["result"] == "held", trial
        assert trial["said"], trial
        assert trial["kept"] == trial["expected"] >= 2, trial
    assert f"{len(TRIALS)} faults ended as jdist promises" in done.stdout


def test_a_drill_like_a_running_cluster_leaves_that_alone(
    cluster: jdist.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "an exception on one rank"
    monkeypatch.setattr("jdist.client.drill.TRIALS", {name: TRIALS[name]})
    cluster.run("mine = rank")
    options = options_like(cluster.asynchronous.link)
    backend = options.pop("backend")
    (drill,) = bridge().call(run_drills([backend], lambda _: None, **options))
    assert drill.held, drill
    assert (drill.world_size, len(drill.hosts)) == (cluster.world_size, 2)
    assert cluster.run("mine").values == {r: r for r in range(4)}


def test_a_promise_that_is_not_kept_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the interrupt, no rank comes free of a collective that another skips."""
    name = "a rank skips a collective"
    monkeypatch.setattr("jdist.client.drill.TRIALS", {name: TRIALS[name]})
    monkeypatch.setattr("jdist.client.drill.FREE", 5.0)  # also for the cells before
    monkeypatch.setattr("jdist.client.run.CellRun.cancel", lambda _: None)
    (drill,) = bridge().call(run_drills(["gloo"], lambda _: None))
    assert not drill.held
    assert drill.trials[0].reason == "rank 0 is not free after 5 s"
    assert drill.trials[0].verdict_seconds is not None


def test_a_killed_drill_leaves_no_cluster_and_claims_nothing(tmp_path: Path) -> None:
    report = tmp_path / "drill.json"
    before = set(find.connections())
    command = [
        sys.executable,
        "-m",
        "jdist",
        "doctor",
        "--drill",
        "-n",
        "2",
        "--backend",
        "gloo",
        "--json",
        str(report),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as drill:
        assert drill.stderr is not None
        assert any(" (1 of " in line for line in drill.stderr)
        assert find.connections().keys() - before
        drill.kill()
    assert eventually(lambda: find.connections().keys() <= before)
    assert json.loads(report.read_text())["held"] is False


def test_words_that_mean_nothing_are_refused() -> None:
    for words, text in (
        (["--drill", "--json", "/no/such/file"], "cannot be written"),
        (["--drill", "--json", ""], "cannot be written"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "jdist", "doctor", *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode != 0
        assert text in done.stderr
    with pytest.raises(UsageError, match="there is no backend 'gluu'"):
        bridge().call(run_drills(["gluu"], lambda _: None))
