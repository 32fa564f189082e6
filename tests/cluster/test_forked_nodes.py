"""The nodes that tests fork are like those that are started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import jdist
from support import anatomy
from support.forked_nodes import ADDRESS

LOOK = """
import multiprocessing.process, os, signal, sys, threading
import __main__
{
    "path": sys.path, "argv": sys.argv, "flags": str(sys.flags), "executable": sys.executable, "main": dir(__main__),
    "directory": (os.getcwd(), multiprocessing.process.ORIGINAL_DIR), "modules": set(sys.modules),
    "environment": {k: v for k, v in os.environ.items() if not k.endswith("PORT") and k != "TORCHELASTIC_RUN_ID"},
    "signals": {n: str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
    "threads": (torch.get_num_threads(), sorted(t.name for t in threading.enumerate())),
    "descriptors": len(os.listdir("/proc/self/fd")), "encoding": (sys.stdin.encoding, sys.stdout.encoding),
}
"""


@pytest.fixture(autouse=True)
def _forked(traces: object) -> None:
    if not os.environ.get(ADDRESS):
        pytest.skip("nodes are forked in virtual environments only")


def test_the_importer_outlives_whoever_asks_it_and_is_killed(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(os.environ[ADDRESS])
    assert "forked_nodes" in " ".join(psutil.Process(anatomy.agent(fresh_cluster(1), 0)).cmdline())


def test_a_forked_node_is_like_one_that_is_started(
    fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forked = fresh_cluster(1)
    assert "forked_nodes" in " ".join(psutil.Process(anatomy.agent(forked, 0)).cmdline())
    monkeypatch.delenv(ADDRESS, raising=False)
    started = fresh_cluster(1)
    assert "join" in psutil.Process(anatomy.agent(started, 0)).cmdline()
    found, expected = (own.run(LOOK).values[0] for own in (forked, started))
    expected["environment"][ADDRESS] = found["environment"].get(ADDRESS)
    assert expected.pop("modules") <= found.pop("modules")  # and what agents import
    for what in expected:
        assert found[what] == expected[what], what
