"""The soak across two hosts: cables are pulled and squeezed between the other faults."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

import jdist
from support.hosts.namespaces import Bed
from support.soak import faults, soak

FAULTS = 14
SEED = 3


def pulled(hosts: Bed) -> faults.Fault:
    """A cable is out for some seconds while a correct program runs: late is not lost, and nobody is accused."""

    def pull(cluster: jdist.Cluster, rng: random.Random) -> faults.Report:
        node, seconds = rng.randrange(2), rng.choice([0.3, 1.0, 4.0])

        def meanwhile(run: jdist.CellRun) -> None:
            time.sleep(rng.random() * 0.2)
            hosts.cut(node)
            healing = threading.Timer(seconds, hosts.heal, (node,))
            healing.start()
            healing.join()

        return faults.must_finish(cluster, rng, faults.Report("cable pulled"), meanwhile)

    return pull


def squeezed(hosts: Bed) -> faults.Fault:
    """A slow cable."""

    def squeeze(cluster: jdist.Cluster, rng: random.Random) -> faults.Report:
        node = rng.randrange(2)
        hosts.slow(node, rate=rng.choice(["2mbit", "20mbit"]))
        try:
            return faults.must_finish(cluster, rng, faults.Report("cable slow"), lambda _: None)
        finally:
            hosts.fast(node)

    return squeeze


@pytest.mark.timeout(400)
def test_faults_of_the_network_lose_nothing(across: Callable[..., jdist.Cluster], hosts: Bed) -> None:
    chosen = {
        pulled(hosts): 3,
        squeezed(hosts): 2,
        faults.missing: 2,
        faults.raises: 1,
        faults.killed: 1,
        faults.interrupted: 1,
    }
    reports = list(soak.soak(across(), SEED, FAULTS, None, chosen))
    print(soak.table(reports))
    wrong = [f"fault {n} ({r.kind}): {'; '.join(r.wrong)}" for n, r in enumerate(reports) if r.wrong]
    assert not wrong, "\n".join(wrong)
    assert {"cable pulled", "cable slow"} <= {r.kind for r in reports}
