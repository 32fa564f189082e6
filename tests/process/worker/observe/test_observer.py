"""What a rank is doing: for every way to be blocked, and for the ways that only look like it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jdist.core.messages.observation import ANY, Observation
from support.ranks import Ranks


@pytest.fixture
def world() -> Iterator[Ranks]:
    ranks = Ranks(2)
    try:
        yield ranks
    finally:
        ranks.close()


COLLECTIVES = {
    "dist.all_reduce(t)": ("all_reduce", ((4,),), "op=SUM"),
    "dist.all_reduce(t, dist.ReduceOp.MAX)": ("all_reduce", ((4,),), "op=MAX"),
    "dist.broadcast(t, src=0)": ("broadcast", ((4,),), "src=0"),
    "dist.broadcast(t, group_src=0)": ("broadcast", ((4,),), "src=0"),
    "dist.reduce(t, 1, op=dist.ReduceOp.MIN)": ("reduce", ((4,),), "dst=1 op=MIN"),
    "dist.all_gather([torch.ones(4), torch.ones(4)], t)": ("all_gather", ((4,),), ""),
    "dist.all_gather_into_tensor(torch.ones(8), t)": ("all_gather_into_tensor", ((4,),), ""),
    "dist.gather(t, dst=0)": ("gather", ((4,),), "dst=0"),
    "dist.scatter(t, src=0)": ("scatter", ((4,),), "src=0"),
    "dist.reduce_scatter(t, [torch.ones(4), torch.ones(4)])": ("reduce_scatter", ((4,), (4,)), "op=SUM"),
    "dist.reduce_scatter_tensor(t, torch.ones(8))": ("reduce_scatter_tensor", ((8,),), "op=SUM"),
    "dist.all_to_all([torch.ones(2), torch.ones(2)], [torch.ones(2), torch.ones(2)])": (
        "all_to_all",
        ((2,), (2,)),
        "splits=[2, 2]→[2, 2]",
    ),
    "dist.all_to_all_single(torch.ones(4), t, [1, 3], [1, 3])": ("all_to_all_single", ((4,),), "splits=[1, 3]→[1, 3]"),
    "dist.all_reduce_coalesced([t, torch.ones(2)])": ("all_reduce_coalesced", ((4,), (2,)), "op=SUM"),
    "dist.barrier()": ("barrier", (), ""),
    "dist.all_gather_object([None, None], 'x')": ("all_gather_object", (), ""),
    "dist.broadcast_object_list([1], 0)": ("broadcast_object_list", (), "src=0"),
    "dist.gather_object(1, None, dst=0)": ("gather_object", (), "dst=0"),
    "dist.scatter_object_list([None], None, src=0)": ("scatter_object_list", (), "src=0"),
}


def _is_in_its_last_part(at: Observation, before: int) -> bool:
    """A collective may be several of gloo's, one after the other, and a look may fall between two of them."""
    return bool(at.doing.calls) and at.doing.calls[0].number == at.groups[0].begun > at.groups[0].ended == before


@pytest.mark.parametrize("code", COLLECTIVES)
def test_a_collective_that_nobody_else_enters(world: Ranks, code: str) -> None:
    op, shapes, detail = COLLECTIVES[code]
    world.form()
    world.run("t = torch.ones(4, dtype=torch.float32)\ndist.barrier()")
    world.ask(1, "run", f"\n{code}")
    before = world.look(0).groups[0].begun
    look = world.comes_to(1, lambda at: _is_in_its_last_part(at, before))
    (call,) = look.doing.calls
    assert (call.op, call.shapes, call.detail, call.line, call.peer) == (op, shapes, detail, 2, None)
    assert (look.doing.kind, look.doing.op) == ("collective", op)
    assert look.doing.source == code
    (progress,) = look.groups
    assert (progress.label, progress.ranks) == ("world", (0, 1))
    assert call.number == progress.begun
    assert world.look(0).groups[0].begun == before
    assert world.look(0).doing.kind == "idle"
    world.interrupt()
    assert world.answer(1, "done")[0] != "value"
    assert world.look(1).doing.kind == "idle"


WITHOUT_A_NOTE = {
    "handle = dist.all_reduce(t, async_op=True)\nhandle.wait()": ("all_reduce", 1, "op=SUM"),
    "handle = dist.broadcast(t, 0, async_op=True)\n\nhandle.wait()": ("broadcast", 1, "src=0"),
    "first = dist.all_reduce(t, async_op=True)\nsecond = dist.broadcast(t, 0, async_op=True)\nsecond.wait()": (
        "broadcast",
        2,
        "src=0",
    ),
    "import torch.distributed.distributed_c10d as c\nc.all_reduce(t)": ("all_reduce", 2, ""),
    "import torch.distributed._functional_collectives as f\ny = f.all_reduce(t, 'sum', dist.group.WORLD)\ny = y + 1": (
        "all_reduce",
        2,
        "",
    ),
    "import torch.distributed._functional_collectives as f\ny = f.permute_tensor(t, [1, 0], [0, 1])\ny = y + 1": (
        "all_to_all",
        2,
        "",
    ),
    "ddp(torch.ones(1, 2)).sum().backward()": ("all_reduce", 1, ""),
}


@pytest.mark.parametrize("code", WITHOUT_A_NOTE)
def test_a_collective_that_is_waited_for_elsewhere(world: Ranks, code: str) -> None:
    op, line, detail = WITHOUT_A_NOTE[code]
    world.form()
    world.run(
        "t = torch.ones(4)\nddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "for _ in range(2): ddp(torch.ones(1, 2)).sum().backward()"
    )
    world.ask(1, "run", code)
    last = code.count("\n") + 1
    look = world.comes_to(1, lambda at: at.doing.line == last and sum(c.number for c in at.doing.calls) > 0)
    assert look.doing.kind == "collective"
    (call,) = look.doing.calls
    assert (call.op, call.line, call.detail, call.is_done) == (op, line, detail, False)
    progress = look.groups[0]
    assert progress.ended < call.number <= progress.begun
    world.interrupt()
    world.answer(1, "done")


TRANSFERS = {
    "dist.recv(t, 0)": [("recv", 0, 0)],
    "dist.recv(t, 0, tag=7)": [("recv", 0, 7)],
    "dist.recv(t, group_src=0, tag=8)": [("recv", 0, 8)],
    "dist.recv(t)": [("recv", ANY, 0)],
    "dist.send(torch.ones(1 << 22), 0, tag=3)": [("send", 0, 3)],
    "r = dist.irecv(t, 0, tag=2)\nr.wait()": [("irecv", 0, 2)],
    "dist.irecv(t, 0).wait()": [("irecv", 0, 0)],
    "dist.irecv(t).wait()": [("irecv", ANY, 0)],
    "dist.isend(torch.ones(1 << 22), 0).wait()": [("isend", 0, 0)],
    "works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1 << 22), 0), "
    "dist.P2POp(dist.irecv, t, 0)])\nfor w in works: w.wait()": [("isend", 0, 0)],
    "a = [dist.isend(torch.ones(1 << 22), 0), dist.irecv(t, 0)]\na[0].wait()": [("isend", 0, 0)],
    "dist.recv_object_list([None], 0)": [("recv_object_list", 0, 0)],
}


@pytest.mark.parametrize("code", TRANSFERS)
def test_a_send_or_recv_that_nobody_answers(world: Ranks, code: str) -> None:
    world.form()
    world.run("t = torch.ones(4)")
    world.ask(1, "run", code)
    # Until then it may be seen in the call that begins the second transfer of two.
    look = world.comes_to(1, lambda at: [(c.op, c.peer, c.tag) for c in at.doing.calls] == TRANSFERS[code])
    assert look.doing.kind == "transfer"
    assert all(c.number == 0 and not c.is_done and c.line == 1 for c in look.doing.calls)
    assert look.groups[0].begun == look.groups[0].ended
    world.interrupt()
    world.answer(1, "done")


def test_waits_at_the_store_say_what_for(world: Ranks) -> None:
    world.form()
    world.ask(1, "run", "dist.new_group([0, 1])")
    doing = world.comes_to(1, lambda at: at.doing.kind == "store").doing
    assert (doing.op, doing.line, doing.needs) == ("new_group", 1, (0, 1))
    assert doing.waits_for == "ranks 0-1 to call new_group as well"
    world.interrupt()
    world.answer(1, "done")
    world.form()
    world.ask(1, "run", "dist.distributed_c10d._get_default_store().wait(['never', 'ever'])")
    doing = world.comes_to(1, lambda at: at.doing.kind == "store").doing
    assert (doing.op, doing.waits_for) == ("store.wait", "keys 'never', 'ever' at the store")
    world.interrupt()
    world.answer(1, "done")


PYTHON = {
    "import time\ntime.sleep(60)": 2,
    "import threading\nthreading.Event().wait(60)": 2,
    "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire(True, 60)": 4,
    "import queue\nqueue.SimpleQueue().get(True, 60)": 2,
    "import subprocess\nsubprocess.run(['sleep', '60'])": 2,
    "while True: pass": 1,
    "import multiprocessing as m\nm.current_process()._config['daemon'] = False\n"
    "import torch.utils.data as d, time\nclass S(d.Dataset):\n    def __len__(self): return 4\n"
    "    def __getitem__(self, i): time.sleep(60)\n"
    "loader = d.DataLoader(S(), num_workers=1, multiprocessing_context='fork')\nnext(iter(loader))": 8,
}


@pytest.mark.parametrize("code", PYTHON)
def test_python_is_python_though_a_collective_is_in_flight(world: Ranks, code: str) -> None:
    world.form()
    world.run({1: "handle = dist.all_reduce(torch.ones(4), async_op=True)"})
    world.ask(1, "run", code)
    line = PYTHON[code]
    look = world.comes_to(1, lambda at: at.doing.line == line and at.doing.seconds > 0.3)
    assert look.doing.kind == "python"
    assert look.groups[0].begun == look.groups[0].ended + 1
    world.interrupt(grace=20.0)  # a data loader gives its workers five seconds to end
    world.answer(1, "done")


def test_a_rank_that_computes_is_told_from_one_that_sleeps(world: Ranks) -> None:
    world.form()
    world.ask(0, "run", "import time\ntime.sleep(60)")
    world.ask(1, "run", "while True: pass")
    looks = [world.comes_to(r, lambda at: at.doing.seconds > 0.5 and at.doing.cpu is not None) for r in (0, 1)]
    asleep, busy = (look.doing.cpu or 0.0 for look in looks)
    assert busy > 2 * asleep
    world.interrupt()
    for rank in (0, 1):
        world.answer(rank, "done")


GATED = """
import threading, torch.distributed.distributed_c10d as c
begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
original = c._rank_not_in_group
def gated(group):
    begun.release()
    assert go_on.acquire(timeout=30)
    return original(group)
c._rank_not_in_group = gated
"""
"""A collective has been called, and is not in the recorder before somebody lets it go on."""


def test_a_rank_is_never_missing_from_the_collective_that_it_is_in(world: Ranks) -> None:
    """It enters it while it is being looked at."""
    world.form()
    world.run("t = torch.ones(4)\ndist.barrier()")
    world.run({1: GATED})
    world.ask(1, "run", "dist.all_reduce(t)")
    look = world.side(
        1,
        "import time\n"
        "class Late:\n"
        "    def __getattr__(self, name):\n"
        "        return lambda *args, **named: self.late(getattr(recorder, name)(*args, **named))\n"
        "    def late(self, found):\n"
        "        ns['go_on'].release()\n"
        "        end = time.monotonic() + 30\n"
        "        while len(recorder.entries()) == before: assert time.monotonic() < end\n"
        "        return found\n"
        "assert ns['begun'].acquire(timeout=30)\n"
        "before = len(O._recorder.entries())\n"
        "recorder, O._recorder = O._recorder, Late()\n"
        "_ = O.observe('cpu', 1, 8)\n"
        "O._recorder = recorder",
    )
    assert (look.doing.kind, look.doing.op) == ("collective", "all_reduce")
    assert [c.number for c in look.doing.calls if c.number > look.groups[0].begun] == []
    world.interrupt()
    world.answer(1, "done")


def test_a_rank_that_moves_on_while_it_is_looked_at_is_not_blocked() -> None:
    world = Ranks(1)
    try:
        world.form()
        world.run(f"t = torch.ones(4)\n{GATED}")
        world.ask(0, "run", "dist.all_reduce(t)\ndist.broadcast(t, 0)\ndist.barrier()")
        look = world.side(
            0,
            "def entries():\n"
            "    ns['go_on'].release(2)\n"
            "    assert all(ns['begun'].acquire(timeout=30) for _ in range(2))\n"
            "    del recorder.entries\n"
            "    return recorder.entries()\n"
            "assert ns['begun'].acquire(timeout=30)\n"
            "recorder = O._recorder\n"
            "recorder.entries = entries\n"
            "_ = O.observe('cpu', 1, 0)\n"
            "ns['go_on'].release()",
        )
        assert (look.doing.kind, look.doing.calls) == ("python", ())
        assert world.answer(0, "done") == ("value", None)
    finally:
        world.close()


def test_a_call_that_is_made_while_the_rank_is_looked_at_has_its_own_name() -> None:
    """Not that of the collective in which torch does it."""
    world = Ranks(1)
    try:
        world.form()
        world.run("import threading\nbegun, go_on = threading.Semaphore(0), threading.Semaphore(0)")
        world.ask(0, "run", "assert go_on.acquire(timeout=30)\ndist.all_gather_object([None], 1)\nbegun.release()")
        look = world.side(
            0,
            "class Late:\n"
            "    def __getattr__(self, name):\n"
            "        return getattr(recorder, name)\n"
            "    def entries(self):\n"
            "        ns['go_on'].release()\n"
            "        assert ns['begun'].acquire(timeout=30)\n"
            "        return recorder.entries()\n"
            "recorder, O._recorder = O._recorder, Late()\n"
            "_ = O.observe('cpu', 1, 8)\n"
            "O._recorder = recorder",
        )
        assert {c.op for c in look.recent} == {"all_gather_object"}
        assert world.answer(0, "done") == ("value", None)
    finally:
        world.close()


def test_looks_that_are_under_way_at_once_read_the_recorder_one_after_the_other() -> None:
    """What one of them had read before would stand beside what the other has read since."""
    world = Ranks(1)
    try:
        world.form()
        world.run("dist.all_reduce(torch.ones(4))")
        most, found = world.side(
            0,
            "import threading, time\n"
            "from jdist.worker.compat import torch as compat\n"
            "original, reading, most = compat.flight_record, [], []\n"
            "def dump(*, with_entries):\n"
            "    if not with_entries: return original(with_entries=False)\n"
            "    reading.append(1); most.append(len(reading)); time.sleep(0.2)\n"
            "    found = original(with_entries=True)\n"
            "    reading.pop()\n"
            "    return found\n"
            "compat.flight_record, found = dump, []\n"
            "looks = [threading.Thread(target=lambda: found.append(O.observe('cpu', 1, 8))) for _ in range(3)]\n"
            "for t in looks: t.start()\n"
            "for t in looks: t.join(30)\n"
            "_ = (most, found)",
        )
        assert max(most) == 1
        assert len(found) == 3
        assert {look.groups for look in found} == {found[0].groups}
    finally:
        world.close()


def test_recent_calls_and_labels(world: Ranks) -> None:
    world.form(named={"pair": (0, 1)})
    world.run(
        "t = torch.ones(4)\nfor _ in range(5): dist.all_reduce(t)\ndist.broadcast(t, 1, groups['pair'])\n"
        "other = dist.new_group([0, 1], group_desc='tp')\ndist.all_gather_object([None] * 2, rank, other)\n"
        "dist.send(t, 1 - rank) if rank else dist.recv(t)\ndist.barrier()"
    )
    for rank in (0, 1):  # gloo's own thread notes the end of a call, perhaps after the call has returned
        world.comes_to(rank, lambda at: all(g.begun == g.ended for g in at.groups))
    look = world.look(0, recent=3)
    labels = {g.name: g.label for g in look.groups}
    assert sorted(labels.values()) == ["pair", "tp", "world"]
    by_label = {label: [c for c in look.recent if c.group == name] for name, label in labels.items()}
    assert [(c.op, c.is_done, c.line) for c in by_label["world"]] == [
        ("all_reduce", True, 2),
        ("recv", True, 6),
        ("barrier", True, 7),
    ]
    assert [(c.op, c.detail, c.line) for c in by_label["pair"]] == [("broadcast", "src=1", 3)]
    (gathered,) = by_label["tp"]
    assert (gathered.op, gathered.number) == ("all_gather_object", 2)  # the sizes first, then the objects
    assert all(c.ended is not None and c.ended >= c.started for c in look.recent)
    world_progress = next(g for g in look.groups if g.label == "world")
    numbers = [c.number for c in by_label["world"] if c.peer is None]
    assert numbers[-1] == world_progress.begun == numbers[0] + 1
    other = next(g for g in world.look(1).groups if g.label == "world")
    assert other.begun == world_progress.begun  # though one rank has sent and the other received


def test_sends_do_not_upset_the_numbers() -> None:
    """The group's own counter counts them, and only on the ranks that send."""
    world = Ranks(3)
    try:
        world.form()
        world.run("t = torch.ones(1)\ndist.barrier()")
        began = [world.comes_to(r, lambda at: at.groups[0].begun == at.groups[0].ended).groups for r in range(3)]
        assert len(set(began)) == 1
        world.run("for _ in range(3):\n    if rank == 0: dist.send(t, 1)\n    if rank == 1: dist.recv(t, 0)")
        world.run("dist.barrier()")
        ended = [world.comes_to(r, lambda at: at.groups[0].begun == at.groups[0].ended).groups for r in range(3)]
        assert len(set(ended)) == 1
    finally:
        world.close()


def test_a_trace_has_the_calls_of_one_run(world: Ranks) -> None:
    world.form()
    world.run("t = torch.ones(4)\ndist.all_reduce(t)")
    code = (
        "ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "ddp(torch.ones(1, 2)).sum().backward()\n"
        "work = dist.all_reduce(t, async_op=True)\nwork.wait()\n"
        "dist.send(t, 1) if rank == 0 else dist.recv(t, 0)\ndist.barrier()"
    )
    world.run(code)
    traces = [world.side(r, "_ = O.trace(0)") for r in (0, 1)]
    for trace in traces:
        assert trace.run == 2
        assert trace.began <= trace.calls[0].started <= trace.calls[-1].started <= trace.ended <= trace.now
        assert trace.left_out == 0
    calls = [[(c.op, c.line, c.number) for c in t.calls if c.peer is None] for t in traces]
    assert calls[0] == calls[1]
    assert [c[:2] for c in calls[0]][-3:] == [
        ("all_reduce", 2),
        ("all_reduce", 3),
        ("barrier", 6),
    ]  # the first is DDP's own
    numbers = [c[2] for c in calls[0]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [(c.op, c.peer, c.line) for t in traces for c in t.calls if c.peer is not None] == [
        ("send", 1, 5),
        ("recv", 0, 5),
    ]
    earlier = world.side(0, "_ = O.trace(1)")
    assert [(c.op, c.line, c.shapes, c.dtypes) for c in earlier.calls] == [("all_reduce", 2, ((4,),), ("float32",))]
    assert world.side(0, "_ = O.trace(77)") is None
