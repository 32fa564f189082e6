"""Reform: the user's functions after a re-forming on real ranks, and what is told of what jdist could not mend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

GIVE = """
import jdist, threading
seen = globals().get("seen", [])

@jdist.on_reform
def rebuild(generation):
    t = torch.ones(1)
    dist.all_reduce(t)
    seen.append((generation, t.item(), threading.current_thread() is threading.main_thread()))
"""
TAKE_BACK = "import jdist\n@jdist.on_reform\ndef rebuild(): pass"


@pytest.fixture(scope="module")
def own(run_traces: Traces) -> Iterator[jdist.Cluster]:
    with jdist.start(2, 2, backend="gloo", name="reformed", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0), anatomy.agent(cluster, 1)}
        yield cluster
        run_traces.exempt = before


@pytest.fixture
def notices(own: jdist.Cluster) -> Iterator[list[str]]:
    told: list[str] = []
    unwatch = own.asynchronous.watch(lambda m: told.append(m.text) if type(m).__name__ == "Notice" else None)
    yield told
    unwatch()


def reform(cluster: jdist.Cluster) -> None:
    """A deadline has the world formed again."""
    with pytest.raises(jdist.CellTimeout):
        cluster.run("if rank: dist.barrier()", timeout=0.3)


def lose(cluster: jdist.Cluster, rank: int) -> None:
    pid = anatomy.worker(cluster, rank)
    anatomy.kill(pid)
    assert eventually(lambda: anatomy.worker(cluster, rank) not in (0, pid))


def test_functions_are_called_on_the_main_thread_of_all_ranks_and_may_use_collectives(own: jdist.Cluster) -> None:
    own.run(GIVE)
    reform(own)
    now = own.run("seen", timeout=20).values
    generation = own.generation
    assert now == {key: [(generation, 4.0, True)] for key in range(4)}
    own.run("1")
    assert own.run("len(seen)").values == dict.fromkeys(range(4), 1), "only after a re-forming"
    own.run(TAKE_BACK)


def test_a_fresh_rank_takes_part_after_its_setup_cells(own: jdist.Cluster) -> None:
    own.run(f"seen = []\n{GIVE}", setup=True)
    lose(own, 3)
    assert own.run("[s[1:] for s in seen]", timeout=20).values == {key: [(4.0, True)] for key in range(4)}
    own.run(TAKE_BACK, setup=True)


def test_an_error_is_told_with_its_rank_and_leaves_the_rank_usable(own: jdist.Cluster, notices: list[str]) -> None:
    own.run("import jdist\n@jdist.on_reform\ndef rebuild():\n    if rank == 2: raise ValueError('no such engine')")
    generation = own.generation
    reform(own)
    assert own.run("rank * 2", timeout=20).values == {r: 2 * r for r in range(4)}
    assert own.generation == generation + 1
    (told,) = [n for n in notices if "on_reform" in n]
    assert told.startswith("a function of jdist.on_reform failed on rank 2 (node 1")
    assert "ValueError: no such engine" in told
    own.run(TAKE_BACK)


def test_one_that_hangs_is_ended_and_not_called_again(own: jdist.Cluster, notices: list[str]) -> None:
    own.run("import jdist\n@jdist.on_reform\ndef rebuild():\n    if rank: dist.barrier()")
    reform(own)
    assert own.run("rank", timeout=30).values == {r: r for r in range(4)}
    assert any("on_reform was ended" in n for n in notices)
    assert any("not called again for that" in n for n in notices)
    own.run(TAKE_BACK)


HOLDERS = """
import functools, torch.distributed.optim, torch.distributed.nn.functional as functional
from dataclasses import dataclass
g = dist.new_group([0, 1, 2, 3])
def total(x, group=g, *, world=dist.group.WORLD):
    return functional.all_reduce(x, group=group).item() + functional.all_reduce(x, group=world).item()
@dataclass(frozen=True, slots=True)
class Trainer:
    group: object
    pairs: tuple
trainer = Trainer(g, ((1, g),))
bound = functools.partial(functional.all_reduce, group=g)
frozen, keyed = frozenset([g]), {g: "tensor"}
torch.distributed.optim.my_group = g
def use():
    x, here = torch.ones(1), torch.distributed.optim.my_group
    held = *frozen, *keyed, trainer.group, trainer.pairs[0][1], here
    return total(x), bound(x).item(), functional.all_reduce(x).item(), [h is g for h in held]
"""


def test_every_kind_of_holder_uses_the_new_groups(own: jdist.Cluster, notices: list[str]) -> None:
    own.run(HOLDERS)
    expected = dict.fromkeys(range(4), (8.0, 4.0, 4.0, [True] * 5))
    assert own.run("use()", timeout=20).values == expected
    for _ in range(2):
        reform(own)
        assert own.run("use()", timeout=20).values == expected
    assert not notices


def test_a_displayed_group_is_replaced_without_a_search_of_what_the_kernel_is_made_of() -> None:
    with jdist.start(2, backend="gloo", name="displayed") as cluster:
        cluster.run("dist.new_group([0, 1])")
        reform(cluster)
        is_searched = "import gc\nany(each is get_ipython() for each in gc.get_objects())"
        assert cluster.run(is_searched, timeout=20).values == dict.fromkeys(range(2), False)


def test_what_could_not_be_mended_is_told_and_points_to_on_reform(own: jdist.Cluster, notices: list[str]) -> None:
    own.run(
        "def batches(group):\n    yield 1\n    yield group\nwaiting = batches(dist.new_group([0, 1]))\nnext(waiting)"
    )
    reform(own)
    own.run("rank", timeout=20)
    told = [n for n in notices if "suspended" in n]
    assert len(told) >= 2  # one for each member of the group
    assert all("the suspended batches() still holds" in n and "@jdist.on_reform" in n for n in told)
    own.run("del waiting")


def test_in_the_notebook_there_is_nothing_to_reform() -> None:
    with pytest.raises(jdist.UsageError, match="cells on ranks"):
        jdist.on_reform(print)


def test_a_group_of_a_cell_that_ended_before_its_rank_could_say_anything_else_is_made_again(own: jdist.Cluster) -> None:
    """The control thread is busy while the cell makes the group and ends: its end must not overtake the group."""
    own.run(
        """
import asyncio, gc, threading, time
[thread] = [each.ident for each in threading.enumerate() if each.name == "jdist"]
loops = [each for each in gc.get_objects() if isinstance(each, asyncio.BaseEventLoop)]
[control] = [each for each in loops if each._thread_id == thread]
control.call_soon_threadsafe(time.sleep, 1.0)
late = dist.new_group([0, 1, 2, 3])
"""
    )
    own.new_group("four", range(4))
    assert own.run("t = torch.ones(1); dist.all_reduce(t, group=late); t.item()").values == dict.fromkeys(range(4), 4.0)
