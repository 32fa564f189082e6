"""The call log: what it records of torch.distributed's functions, which behave as before for whoever calls them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.ranks import Ranks


@pytest.fixture(scope="module")
def world() -> Iterator[Ranks]:
    ranks = Ranks(1)
    try:
        ranks.form()
        yield ranks
    finally:
        ranks.close()


def check(world: Ranks, code: str) -> object:
    (found,) = world.run(code)
    return found


def test_names_documentation_and_signature_are_torchs_own(world: Ranks) -> None:
    assert check(
        world,
        "import inspect, pickle, torch.distributed.distributed_c10d as c\n"
        "from torch.distributed import all_reduce\n"
        "_ = (all_reduce is dist.all_reduce, all_reduce.__name__, all_reduce.__doc__ == c.all_reduce.__doc__,\n"
        "     str(inspect.signature(all_reduce)) == str(inspect.signature(c.all_reduce)),\n"
        "     pickle.loads(pickle.dumps(all_reduce)) is all_reduce, all_reduce is c.all_reduce)",
    ) == (True, "all_reduce", True, True, True, False)


def test_a_name_imported_in_a_cell_is_noted_with_its_line(world: Ranks) -> None:
    check(world, "from torch.distributed import all_reduce\n\ndef f():\n    all_reduce(torch.ones(2))\nf()")
    assert world.side(0, "n = G.log.all()[-1]; _ = (n.op, n.line, n.ended > n.started)") == ("all_reduce", 4, True)


def test_p2p_ops_still_know_their_functions(world: Ranks) -> None:
    assert check(
        world,
        "p = [dist.P2POp(dist.isend, torch.ones(1), group_peer=0), dist.P2POp(dist.irecv, torch.ones(1), group_peer=0)]"
        "\n_ = [o.op is f for o, f in zip(p, (dist.isend, dist.irecv))]",
    ) == [True, True]


def test_notes_keep_nothing_alive(world: Ranks) -> None:
    assert (
        check(
            world,
            "import gc, time, weakref\nt = torch.ones(2)\nwork = dist.all_reduce(t, async_op=True)\nwork.wait()\n"
            "refs = [weakref.ref(t), weakref.ref(work)]\n"
            "l = [torch.ones(1)]\ndist.all_gather(l, torch.ones(1))\nrefs.append(weakref.ref(l[0]))\n"
            "for made in (torch.ones(3), torch.nn.Parameter(torch.ones(3))):\n"
            "    refs.append(weakref.ref(made))\n    dist.broadcast(made.data, src=0)\n"
            "    dist.all_reduce(tensor=made.detach(), op=dist.ReduceOp.SUM, group=None, async_op=False)\n"
            "del t, work, l, made\ndeadline = time.monotonic() + 20\n"
            "while any(r() is not None for r in refs) and time.monotonic() < deadline:\n"  # gloo's thread lets go, too
            "    dist.barrier()\n    gc.collect()\n"
            "_ = [r() for r in refs]",
        )
        == [None] * 5
    )


def test_a_note_tells_of_the_tensor_as_it_was(world: Ranks) -> None:
    check(
        world,
        "t = torch.ones(2, 3)\ndist.all_reduce(t)\nt.resize_(1)\nt.data = torch.ones(7, dtype=torch.float64)\n"
        "dist.broadcast(torch.ones(4, dtype=torch.int64), group=dist.group.WORLD, src=0)\ndel t",
    )
    calls = world.side(
        0, "_ = [(c.op, c.shapes, c.dtypes, c.detail, c.line, c.ended > c.started) for c in O.trace(0).calls]"
    )
    assert calls == [
        ("all_reduce", ((2, 3),), ("float32",), "op=SUM", 2, True),
        ("broadcast", ((4,),), ("int64",), "src=0", 5, True),
    ]


def test_a_call_from_a_library_is_noted_with_the_cells_line(world: Ranks) -> None:
    check(
        world,
        "import types\nlibrary = types.ModuleType('library')\n"
        "exec(compile('def f(dist, t):\\n\\n    return dist.all_reduce(t)', 'library.py', 'exec'), vars(library))\n\n"
        "library.f(dist, torch.ones(1))\nset(map(lambda t: library.f(dist, t), [torch.ones(1)]))",
    )
    assert world.side(0, "_ = [n.line for n in G.log.all()[-2:]]") == [5, 6]


def test_a_call_that_does_not_fit_is_torchs_error(world: Ranks) -> None:
    assert check(world, "try: dist.broadcast(tensor=torch.ones(1), sauce=0)\nexcept TypeError as e: _ = str(e)") == (
        "broadcast() got an unexpected keyword argument 'sauce'"
    )


def test_a_call_that_fails_is_over(world: Ranks) -> None:
    assert check(world, "try: dist.all_reduce('no tensor')\nexcept TypeError as e: _ = 'tensor' in str(e)")
    assert world.side(0, "n = G.log.all()[-1]; _ = (n.op, n.is_done)") == ("all_reduce", True)


def test_torch_compile_and_autograd_pass_through(world: Ranks) -> None:
    before = world.side(0, "_ = len(G.log.all())")
    assert check(
        world,
        "import torch.distributed.nn.functional as nnf\n"
        "@torch.compile(backend='eager', fullgraph=True)\ndef f(x):\n    y = x * 2\n"
        "    dist.all_reduce(y)\n    return y + 1\n"
        "x = torch.ones(3, requires_grad=True)\nnnf.all_reduce(x).sum().backward()\n"
        "_ = (f(torch.ones(3)).tolist(), x.grad.tolist())",
    ) == ([3.0, 3.0, 3.0], [1.0, 1.0, 1.0])
    ops = world.side(0, f"_ = [n.op for n in G.log.all()[{before}:]]")
    assert ops == ["all_reduce", "all_reduce"]  # autograd's there and back; the compiled one is in the graph


def test_old_calls_are_counted_and_let_go(world: Ranks) -> None:
    check(world, "for _ in range(4100): dist.all_reduce(torch.ones(1))")
    kept, left_out = world.side(0, "t = O.trace(0); _ = (len(t.calls), t.left_out)")
    assert kept == 4000
    assert left_out >= 100
