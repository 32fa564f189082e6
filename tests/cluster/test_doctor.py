"""The doctor on this machine: nodes of a running cluster, of one that is thrown away, and the short look at a start."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import jdist
from jdist import commands
from jdist.client import find
from jdist.client.doctor.examine import examine_beforehand
from jdist.client.threads import bridge
from jdist.core.messages.status import Notice
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces


def test_every_node_and_every_way_is_examined(cluster: jdist.Cluster) -> None:
    steps: list[str] = []
    diagnosis = cluster.doctor(on_step=steps.append)
    seen = diagnosis.examination
    assert set(seen.nodes) == set(seen.clocks) == {0, 1}
    assert set(seen.paths) == {(0, 1), (1, 0)}
    for report in seen.nodes.values():
        assert report.hostname == socket.gethostname()
        assert report.python == platform.python_version()
        assert report.cpus == len(os.sched_getaffinity(0))
        assert {d.what for d in report.disks} == {"working directory", "temporary files", "/dev/shm"}
        assert report.facts is not None
        assert report.facts.version == torch.__version__
        assert report.facts.cuda == (torch.version.cuda or "")
        assert report.facts.gpus == torch.cuda.device_count()
    for path in seen.paths.values():
        assert path.trouble == ""
        assert 0 < path.round_trip < 10
    assert all(abs(c.offset) <= c.error + 0.05 for c in seen.clocks.values()), seen.clocks  # it is one clock
    assert (seen.world_size, seen.absent) == (4, {})
    assert diagnosis.is_well, diagnosis
    assert len(steps) == 2


def test_ranks_that_compute_are_not_in_its_way(cluster: jdist.Cluster) -> None:
    run = cluster.run("import time\nwhile True: time.sleep(0.01)", background=True)
    assert cluster.doctor().examination.absent == {}
    assert not run.is_done
    cluster.interrupt()
    assert run.wait(20)


def test_an_agent_that_does_not_answer_is_a_finding_and_the_others_are_examined(
    fresh_cluster: Callable[..., jdist.Cluster],
) -> None:
    own = fresh_cluster(1, 2, beat_timeout=3.0, node_grace=60.0)
    assert own.warnings == ()
    agent = anatomy.agent(own, 1)
    os.kill(agent, signal.SIGSTOP)
    try:
        assert eventually(lambda: own.facts.unreachable == (1,))
        diagnosis = own.doctor()
        assert not diagnosis.is_well
        assert "node 1 could not be examined: it is unreachable" in str(diagnosis)
        assert set(diagnosis.examination.nodes) == {0}
    finally:
        os.kill(agent, signal.SIGCONT)


LACKING = """
import importlib.util, sys

class Finder:
    def find_spec(name, path, target=None):
        if name in GONE:
            lost = GONE.pop(name)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), exec(f"del module.{lost}"))
            return spec

GONE = {
    "torch.distributed.distributed_c10d": "_set_pg_timeout",
    "torch.distributed.pipelining.schedules": "_PipelineSchedule",
    "torch.nn.parallel.distributed": "DistributedDataParallel._update_process_group",
}
sys.meta_path.insert(0, Finder)
"""


def test_names_that_torch_lacks_cost_their_features_alone(
    fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    own = fresh_cluster(1, 2, env={"PYTHONPATH": path})
    (finding,) = own.warnings  # as far as it is known without importing anything
    assert "the timeout of collectives" in finding.text
    assert "distributed_c10d._set_pg_timeout" in finding.text
    assert "_PipelineSchedule" not in finding.text
    (finding,) = own.doctor().findings
    assert "_set_pg_timeout" in finding.text
    assert "_PipelineSchedule" in finding.text
    code = "from datetime import timedelta\ndist.init_process_group(timeout=timedelta(seconds=9))"
    with pytest.raises(
        jdist.CellError, match=rf"torch {re.escape(torch.__version__)}, which has no .*\._set_pg_timeout"
    ):
        own.run(code)
    notices: list[str] = []
    unwatch = own.asynchronous.watch(lambda m: notices.append(m.text) if isinstance(m, Notice) else None)
    own.run("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))")
    with pytest.raises(jdist.CellTimeout):
        own.run("if rank == 0: dist.all_reduce(torch.ones(1))", timeout=1.0)
    assert own.run("t = torch.ones(1); dist.all_reduce(t); t.item()").values == {0: 2.0, 1: 2.0}
    assert [text for text in notices if "has no torch.nn.parallel.DistributedDataParallel._upd" in text]
    unwatch()


def test_before_a_start_a_cluster_is_thrown_away_and_nothing_is_left(
    traces: Traces, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    code = commands.main(["doctor", "-N", "2", "--backend", "gloo"])
    said = capsys.readouterr().out
    assert code == 1
    assert "nosuch0 is set for gloo or NCCL, and there is only" in said
    assert "node 1" in said
    assert version("torch") in said


def test_why_the_world_was_not_formed_is_a_finding(traces: Traces) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        diagnosis = bridge().call(examine_beforehand(1, 1, init_method=f"tcp://{at}", backend="gloo"))
    (finding,) = diagnosis.findings
    assert finding.text.startswith("the world could not be formed: ")
    assert at in finding.text
    assert set(diagnosis.examination.nodes) == {0}


def test_agents_that_end_are_told_as_such(traces: Traces) -> None:
    work = examine_beforehand(1, 1, env={"PYTHONHASHSEED": "nonsense"}, backend="gloo", fork=False)
    diagnosis = bridge().call(work)
    assert diagnosis.examination.nodes == {}
    assert "its agent ended with code" in str(diagnosis)


def test_the_command_examines_the_cluster_that_runs(cluster: jdist.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["doctor", "--cluster", cluster.name]) == 0
    said = capsys.readouterr().out
    assert "nothing found: 2 nodes examined" in said
    assert "from \\ to" in said
    assert cluster.name in find.connections()


def test_the_whole_report_is_printed_as_json_and_nothing_else(
    cluster: jdist.Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert commands.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"].keys() == {"0", "1"}, "as the cluster that runs has"
    assert commands.main(["doctor", "--json", "--cluster", cluster.name]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["is_well"] is True
    assert printed["nodes"]["1"]["torch"] == torch.__version__
    assert sorted((path["from"], path["to"]) for path in printed["paths"]) == [(0, 1), (1, 0)]
    file = tmp_path / "doctor.json"
    assert commands.main(["doctor", "--cluster", cluster.name, "--json", str(file)]) == 0
    assert "nothing found: 2 nodes examined" in capsys.readouterr().out
    assert json.loads(file.read_text()).keys() == printed.keys()
    assert commands.main(["doctor", "--cluster", cluster.name, "--json", str(tmp_path)]) == 2
    assert f"the report cannot be written to {tmp_path}" in capsys.readouterr().err
