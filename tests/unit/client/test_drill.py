"""The drill's course: what becomes of trials that fail, cannot be made, or find no cluster; and its report."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.client import drill as module
from jdist.client.drill import Drill, DrilledCluster, NotTried, Trial, Unmet, run_drills
from jdist.client.lifecycle.start import Waiting
from jdist.core.errors import LaunchError, UsageError
from jdist.core.topology import Topology


class Clusters:
    """Stands for AsyncCluster: records what was started, and how often it was stopped."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.stopped = 0
        self.failures: list[Exception] = []  # Of the next starts; None in between.

    async def start(self, **options: Any) -> Any:
        self.started.append(options)
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        topology = Topology((2, 2), ("a", "b"), ())
        values = {"cluster": self, "backend": options["backend"] or "gloo", "topology": topology, "world_size": 4}
        return SimpleNamespace(**values, start_seconds=1.5, stop=self.stop)

    async def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    clusters = Clusters()
    monkeypatch.setattr(module, "AsyncCluster", clusters)

    async def prepare(self: DrilledCluster, fault: str) -> None:
        self.trial = Trial(fault, "held")

    async def torch_versions(_: DrilledCluster) -> tuple[str, ...]:
        return ("2.13.0",)

    monkeypatch.setattr(DrilledCluster, "prepare", prepare)
    monkeypatch.setattr(DrilledCluster, "torch_versions", torch_versions)
    return clusters


def drilled(
    monkeypatch: pytest.MonkeyPatch, *endings: Exception | None, backends: Any = (None,), launcher: str = "ssh"
) -> tuple[Drill, ...]:
    def trial(ending: Exception | None) -> Any:
        async def run(_: DrilledCluster) -> None:
            if ending is not None:
                raise ending

        return run

    monkeypatch.setattr(module, "TRIALS", {f"fault {n}": trial(ending) for n, ending in enumerate(endings)})
    return asyncio.run(run_drills(backends, lambda _: None, nproc_per_node=None, launcher=launcher))


def test_all_trials_are_made_on_one_cluster(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = drilled(monkeypatch, None, NotTried("no cgroup"), None)
    assert [t.result for t in found.trials] == ["held", "not tried", "held"]
    assert found.held
    assert (found.backend, found.launcher, found.world_size, found.hosts) == ("gloo", "ssh", 4, ("a", "b"))
    assert found.torch == ("2.13.0",)
    assert (len(clusters.started), clusters.stopped) == (1, 1)
    assert clusters.started[0]["on_death"] == "replace"
    assert clusters.started[0]["until"] == os.getpid()


def test_after_a_failure_the_next_trial_gets_a_new_cluster(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = drilled(monkeypatch, None, Unmet("rank 3 was not named"), None, LaunchError("lost"))
    assert [(t.result, t.reason) for t in found.trials] == [
        ("held", ""), ("failed", "rank 3 was not named"), ("held", ""), ("failed", "lost")
    ]  # fmt: skip
    assert not found.held
    assert (len(clusters.started), clusters.stopped) == (2, 2)


def test_a_cluster_that_does_not_start_is_a_failure(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters.failures = [LaunchError("no node came")]
    (found,) = drilled(monkeypatch, None, None)
    assert found.trouble == "the cluster could not be started: no node came"
    assert [t.result for t in found.trials] == ["not tried", "not tried"]
    assert not found.held
    clusters.failures = [None, LaunchError("no node came")]  # type: ignore[list-item]
    (found,) = drilled(monkeypatch, Unmet("x"), None)
    assert found.trials[1].reason == "the cluster could not be started again: no node came"
    assert not found.held


def test_options_that_are_refused_are_an_error_of_the_caller(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.failures = [UsageError("there is no backend 'gluu'")]
    with pytest.raises(UsageError, match="gluu"):
        drilled(monkeypatch, None)


def test_what_has_been_found_out_is_kept_if_a_later_start_is_refused(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.failures = [None, UsageError("this node has no GPU")]  # type: ignore[list-item]
    first, second = drilled(monkeypatch, None, backends=("gloo", "nccl"))
    assert first.held
    assert second.trouble == "the cluster could not be started: this node has no GPU"
    with pytest.raises(UsageError, match="'gluu'"):
        drilled(monkeypatch, None, backends=("gloo", "gluu"))
    assert len(clusters.started) == 2


def test_users_read_what_a_start_waits_for(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(module, "TRIALS", {"fault": lambda _: asyncio.sleep(0)})
    asyncio.run(run_drills([None], steps.append, launcher="join"))
    clusters.started[0]["on_progress"](Waiting("paste this"))
    assert steps[-1] == "starting a temporary cluster: paste this"


def test_a_signal_that_cannot_be_sent_is_a_failure(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = drilled(monkeypatch, ProcessLookupError(3, "No such process"), None)
    assert [t.result for t in found.trials] == ["failed", "held"]
    assert clusters.stopped == 2


def test_each_backend_has_its_own_cluster_and_gloo_has_two_ranks(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drilled(monkeypatch, None, backends=("gloo", "nccl"), launcher="local")
    assert [drill.backend for drill in found] == ["gloo", "nccl"]
    assert [options.get("nproc_per_node") for options in clusters.started] == [2, None]


def test_a_drill_that_tried_nothing_has_not_held() -> None:
    assert not Drill("gloo", "local", trials=(Trial("a", "not tried"),)).held
    assert Drill("gloo", "local", trials=(Trial("a", "not tried"), Trial("b", "held"))).held
