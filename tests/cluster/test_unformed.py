"""A world that cannot be formed: cells run without it and can remove the cause, and no rank loses a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jdist
from jdist.core.errors import UsageError
from support.cells import ALL_REDUCE
from support.waits import eventually

Start = Callable[..., jdist.Cluster]


@pytest.fixture
def own(fresh_cluster: Start) -> jdist.Cluster:
    found = fresh_cluster(2)
    found.run("kept = rank + 1")
    return found


def fail_to_form(cluster: jdist.Cluster) -> str:
    """Ask for what needs the world formed again; why that failed."""
    with pytest.raises(UsageError) as refused:
        cluster.new_group("pair", [0, 1])
    assert eventually(lambda: cluster.facts.phase == "failed")
    return str(refused.value)


def check_whole(cluster: jdist.Cluster) -> None:
    assert eventually(lambda: cluster.facts.phase == "ready")
    cluster.run(ALL_REDUCE)
    assert cluster.run("kept").values == {0: 1, 1: 2}


def test_a_wrong_interface_is_named_with_its_variable_and_can_be_corrected(own: jdist.Cluster) -> None:
    own.run("import os; before = os.environ['GLOO_SOCKET_IFNAME']; os.environ['GLOO_SOCKET_IFNAME'] = 'eth99'", [1])
    why = fail_to_form(own)
    assert "rank 1" in why
    assert "GLOO_SOCKET_IFNAME=eth99" in why
    assert "lo" in why.split("which has", 1)[1]

    assert own.run("kept").values == {0: 1, 1: 2}
    for call in ("dist.all_reduce(torch.ones(1))", "dist.get_rank()", "dist.init_process_group('gloo')"):
        run = own.run(call, check=False)
        errors = [run.outcomes[rank].error for rank in (0, 1)]
        assert all(error is not None and "GLOO_SOCKET_IFNAME=eth99" in error.evalue for error in errors), call
        assert "TCPStore" not in run.outcomes[0].stderr, "torch's own log of the connections that were ended"

    own.run("os.environ['GLOO_SOCKET_IFNAME'] = before", [1])
    check_whole(own)


def test_a_rank_without_descriptors_runs_cells_and_can_close_files(own: jdist.Cluster) -> None:
    code = """
import resource
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError as e:
    print("full", e.errno)
"""
    assert own.run(code, [1]).outcomes[1].stdout == "full 24\n"
    assert own.run("print('printed'); 1 + 1", [1]).outcomes[1].value == 2
    run = own.run("import time; time.sleep(100)", [1], timeout=0.5, check=False)
    assert run.outcomes[1].kind == "timeout", "it can be interrupted, too"
    own.run("del files[:]", [1])
    check_whole(own)


HOSTILE = """
import weakref
class Thing: pass
class Raises:
    def __init__(self, group): self.group = group
    def __getattribute__(self, name): raise SystemExit(name)
class Items(dict):
    def items(self): raise RuntimeError("no items")
class Iterates(list):
    def __iter__(self): raise KeyboardInterrupt
thing = Thing()
dead = weakref.proxy(thing)
del thing
group = dist.new_group([0, 1])
holders = [Raises(group), Items(group=group), Iterates([group]), dead]
"""


def test_objects_whose_own_code_fails_do_not_keep_the_world_from_being_formed(own: jdist.Cluster) -> None:
    own.run(HOSTILE)
    assert own.new_group("pair", [0, 1])
    check_whole(own)
    own.run("t = torch.ones(1); dist.all_reduce(t, group=group)")
