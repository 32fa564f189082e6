"""The cluster that tests share, and what they need to know of a cluster's processes."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

import jdist
from support.cells import ALL_REDUCE
from support.leaks import Traces

IDLE_TIMEOUT = 60.0
"""Seconds after which a cluster ends by itself whose test run was killed."""


class SharedCluster:
    """Two nodes of two ranks with gloo, for every test that does not break it. Made anew after one that did."""

    def __init__(self, traces: Traces, name: str = "shared", **options: Any):
        self._traces = traces
        self._name = name
        self._options = options
        self._pids: set[int] = set()
        self._cluster: jdist.Cluster | None = None
        self._broken: jdist.JdistError | None = None

    def get(self) -> jdist.Cluster:
        if self._broken is not None:
            pytest.fail(f"the shared cluster could not be started: {self._broken}")
        if self._cluster is None:
            self._start()
        assert self._cluster is not None
        return self._cluster

    def _start(self) -> None:
        try:
            self._cluster = jdist.start(
                2, 2, backend="gloo", name=self._name, timeout=180, idle_timeout=IDLE_TIMEOUT, **self._options
            )
        except jdist.JdistError as e:
            self._broken = e
            raise
        self._traces.note_clusters()
        self._pids = {self._cluster.asynchronous.link.connection.pid, *node_pids(self._cluster)}
        self._traces.shared |= self._pids

    def check(self) -> None:
        """The world is whole and idle."""
        cluster = self.get()
        try:
            assert not cluster.status().runs  # first: a run of the test's own that goes on would hold the next one up
            assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)
            assert {r.state for r in cluster.status().ranks} == {"idle"}
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._traces.shared -= self._pids
        if cluster is not None:
            cluster.stop(now=True)


def node_pids(cluster: jdist.Cluster) -> set[int]:
    """The agents' pids: their workers' parents."""
    return {psutil.Process(r.pid).ppid() for r in cluster.status().ranks if r.pid}
