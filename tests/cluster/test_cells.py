"""Cells on ranks: values, output, errors, history, groups of ranks, and who waits for whom."""

from __future__ import annotations

import base64
import queue
import re
import threading
from typing import Any

import pytest

import jdist
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Display, InputRequest, Output
from support.waits import eventually

WORLD = range(4)


def displays(run: jdist.CellRun) -> list[Display]:
    """What a finished run displayed."""
    found: list[Display] = []

    def look(message: Message | None) -> None:
        if isinstance(message, Output):
            found.extend(i for i in message.items if isinstance(i, Display))

    run.watch(look)
    return found


def stdout(run: jdist.CellRun) -> dict[int, str]:
    return {r: o.stdout for r, o in sorted(run.outcomes.items())}


def fails(cluster: jdist.Cluster, code: str, **options: Any) -> jdist.CellError:
    with pytest.raises(jdist.CellError) as caught:
        cluster.run(code, timeout=20, **options)
    return caught.value


# ---------------------------------------------------------------- values and output


def test_values_come_by_rank(cluster: jdist.Cluster) -> None:
    run = cluster.run("x = rank * 10\nx")
    assert run.values == {0: 0, 1: 10, 2: 20, 3: 30}
    assert cluster.run("x + 1").values == {0: 1, 1: 11, 2: 21, 3: 31}
    assert cluster.run("x;").values == dict.fromkeys(WORLD)


def test_names_that_every_worker_has(cluster: jdist.Cluster) -> None:
    code = "rank, local_rank, node_rank, world_size, str(device), torch.__name__, dist.__name__, dist.get_rank()"
    expected = {r: (r, r % 2, r // 2, 4, "cpu", "torch", "torch.distributed", r) for r in WORLD}
    assert cluster.run(code).values == expected


def test_a_reset_keeps_the_names_that_every_worker_has(cluster: jdist.Cluster) -> None:
    names = (
        "rank, local_rank, node_rank, world_size, str(device), torch.ones(1).item(), dist.get_rank(), sorted(groups)"
    )
    before = cluster.run(names).values
    by_ipython = "get_ipython().reset(new_session=False)"
    for reset in ("%reset -f", "%reset -sf", "%reset_selective -f .", by_ipython, "del rank, dist, mine"):
        cluster.run("mine = 1\nrank = 7")
        run = cluster.run(f"own = %who_ls\n{reset}", check=False)
        assert run.values == dict.fromkeys(range(4), None), (reset, run.outcomes)
        assert cluster.run(names).values == before, reset
        assert cluster.run("'mine' in globals()").values == dict.fromkeys(range(4), False), reset
    cluster.run("mine = 1\nown = %who_ls")
    assert cluster.run("'mine' in own, 'rank' in own").values == dict.fromkeys(range(4), (True, False))
    cluster.run("del mine, own")


def test_a_recursion_without_end_is_shown_in_short(cluster: jdist.Cluster) -> None:
    cluster.run("def one(n): return two(n)\ndef two(n):\n    return one(n + 1)\nimport sys")
    part = r"(one|two) at line \d \(\d{3,} times\)"
    for code in ("one(0)", "sys.setrecursionlimit(9000)\none(0)"):
        error = cluster.run(code, check=False).outcomes[0].error
        assert error is not None
        assert error.ename == "RecursionError"
        text = "\n".join(error.traceback)
        assert re.search(f"skipping similar frames: {part}, {part}", text), text
        assert text.count("----> ") < 12, text
    cluster.run("sys.setrecursionlimit(3000)\ndel one, two")


def test_a_collective_gives_every_rank_the_sum(cluster: jdist.Cluster) -> None:
    run = cluster.run("t = torch.ones(3) * rank\ndist.all_reduce(t)\nt.tolist()")
    assert run.values == {r: [6.0, 6.0, 6.0] for r in WORLD}


def test_each_stream_arrives_exactly(cluster: jdist.Cluster) -> None:
    run = cluster.run(
        "import sys\n"
        "print('out', rank)\n"
        "print('two\\nlines', rank, end='')\n"
        "print('err', rank, file=sys.stderr)\n"
        "print('\\u00e4\\u6f22 no newline', end='', file=sys.stderr)"
    )
    assert stdout(run) == {r: f"out {r}\ntwo\nlines {r}" for r in WORLD}
    assert {r: o.stderr for r, o in run.outcomes.items()} == {r: f"err {r}\nä漢 no newline" for r in WORLD}


def test_one_rank_prints_and_the_others_do_not(cluster: jdist.Cluster) -> None:
    assert stdout(cluster.run("if rank == 2:\n    print('me')")) == {0: "", 1: "", 2: "me\n", 3: ""}


def test_below_python(cluster: jdist.Cluster) -> None:
    """os.system, a write to the descriptor, a child's inherited streams: in the run, before its end."""
    run = cluster.run(
        "import os, subprocess\n"
        "os.system(f'echo shell {rank}; echo oops >&2')\n"
        "os.write(1, b'written\\n')\n"
        "subprocess.run(['echo', 'child'], check=True);"
    )
    for rank, outcome in run.outcomes.items():
        assert outcome.stdout == f"shell {rank}\nwritten\nchild\n"
        assert outcome.stderr == "oops\n"


def test_shell_escape_and_line_magic(cluster: jdist.Cluster) -> None:
    run = cluster.run("!echo from $(basename /bin/sh)")
    assert {text.replace("\r", "") for text in stdout(run).values()} == {"from sh\n"}
    run = cluster.run("%timeit -n2 -r1 sum(range(10))")
    assert all("per loop" in text for text in stdout(run).values())


def test_top_level_await(cluster: jdist.Cluster) -> None:
    assert cluster.run("import asyncio\nawait asyncio.sleep(0.01)\nrank").values == {r: r for r in WORLD}


def test_help_is_printed(cluster: jdist.Cluster) -> None:
    text = "".join(
        [d.data.get("text/plain", "") for d in displays(cluster.run("torch.zeros_like?", ranks=[0]))]
        + list(stdout(cluster.run("torch.zeros_like?", ranks=[0])).values())
    )
    assert "Returns a tensor filled with the scalar value" in text


def test_rich_display(cluster: jdist.Cluster) -> None:
    run = cluster.run(
        "from IPython.display import HTML, display\ndisplay(HTML(f'<b>{rank}</b>'))\nHTML(f'<i>{rank}</i>')"
    )
    shown = [(d.ranks, d.data["text/html"], d.is_result) for d in displays(run)]
    for rank in WORLD:
        assert [s[1:] for s in shown if rank in s[0]] == [(f"<b>{rank}</b>", False), (f"<i>{rank}</i>", True)]


def test_a_figure_arrives_as_png(cluster: jdist.Cluster) -> None:
    run = cluster.run("import matplotlib.pyplot as plt\nplt.plot([rank, 1, 2])\nplt.show()", ranks="0,3", timeout=90)
    by_rank = {r: d.data["image/png"] for d in displays(run) if "image/png" in d.data for r in d.ranks}
    assert sorted(by_rank) == [0, 3]
    assert all(base64.b64decode(p).startswith(b"\x89PNG") for p in by_rank.values())
    assert by_rank[0] != by_rank[3]


def test_history(cluster: jdist.Cluster) -> None:
    cluster.run("rank + 100")
    assert cluster.run("_ + 1").values == {r: r + 101 for r in WORLD}
    run = cluster.run("last = max(Out); Out[last], In[last]")
    assert run.values == {r: (r + 101, "_ + 1") for r in WORLD}


def test_a_large_value_stays_on_its_rank(cluster: jdist.Cluster) -> None:
    value = cluster.run("big = torch.zeros(1 << 20); big", ranks=[1]).values[1]
    assert "float32" in repr(value)
    assert "rank 1" in repr(value)
    assert cluster.pull(value.expr, ranks=[value.rank])[1].shape == (1 << 20,)


def test_a_value_that_cannot_be_pickled_does_not_fail_the_run(cluster: jdist.Cluster) -> None:
    run = cluster.run("import threading\nthreading.Lock()", ranks=[0])
    assert run.outcomes[0].ok
    assert "lock" in repr(run.values[0])


# ---------------------------------------------------------------- which ranks


def test_ranks_and_groups(cluster: jdist.Cluster) -> None:
    assert list(cluster.run("rank", ranks="1,3").values) == [1, 3]
    assert list(cluster.run("rank", ranks="node=1").values) == [2, 3]
    assert list(cluster.run("rank", ranks="!2").values) == [0, 1, 3]
    assert list(cluster.run("rank", ranks=-1).values) == [3]
    cluster.new_group("even", [0, 2])
    assert list(cluster.run("rank", group="even").values) == [0, 2]
    code = "t = torch.ones(1); dist.all_reduce(t, group=groups['even']); t.item()"
    assert cluster.run(code, group="even", timeout=20).values == {0: 2.0, 2: 2.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": "0-9"}, ["9", "3"]),
        ({"ranks": "nod=1"}, ["nod", "node"]),
        ({"group": "evn"}, ["evn"]),
        ({"timeout": -1}, ["positive", "-1"]),
    ],
)
def test_what_cannot_be_asked_for(cluster: jdist.Cluster, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(jdist.UsageError) as caught:
        cluster.run("1", **options)
    assert all(w in str(caught.value) for w in words)


# ---------------------------------------------------------------- errors


def test_a_failing_rank_fails_the_run_and_the_others_keep_their_values(cluster: jdist.Cluster) -> None:
    error = fails(cluster, "def f():\n    return 1 / 0\nif rank == 1:\n    f()\nrank")
    assert "rank 1" in str(error)
    assert "ZeroDivisionError" in str(error)
    assert error.values == {0: 0, 2: 2, 3: 3}
    info = error.outcomes[1].error
    assert (info.ename, info.cell_line, info.source.strip()) == (
        "ZeroDivisionError",
        2,
        "return 1/0".replace("/", " / "),
    )
    assert "f()" in "".join(info.traceback)


def test_the_first_cause_is_named_and_not_its_echoes(cluster: jdist.Cluster) -> None:
    """The others wait in a collective that can never end: they are freed, and the cause stays the cause."""
    error = fails(cluster, "if rank == 2:\n    raise ValueError('mine')\ndist.all_reduce(torch.ones(1))")
    assert "rank 2" in str(error)
    assert "ValueError: mine" in str(error)
    assert error.run.first_failure == 2
    assert error.outcomes[2].kind == "error"
    assert {error.outcomes[r].kind for r in (0, 1, 3)} <= {"interrupted", "error"}


def test_a_syntax_error_names_the_line(cluster: jdist.Cluster) -> None:
    error = fails(cluster, "x = 1\ndef g(:\n    pass", ranks=[0])
    assert error.outcomes[0].error.ename == "SyntaxError"
    assert "def g(:" in "".join(error.outcomes[0].error.traceback)
    assert error.outcomes[0].error.cell_line == 2


def test_a_syntax_error_elsewhere_names_the_line_of_the_cell_that_led_there(cluster: jdist.Cluster) -> None:
    error = fails(cluster, "x = 1\ny = 2\nexec('1 +')", ranks=[0])
    assert error.outcomes[0].error.cell_line == 3
    assert error.outcomes[0].error.source == "exec('1 +')"
    assert "run_code" not in "".join(error.outcomes[0].error.traceback), "a frame of IPython"


def test_exit_in_a_cell_does_not_end_the_rank(cluster: jdist.Cluster) -> None:
    pids = cluster.run("import os; os.getpid()").values
    run = cluster.run("raise SystemExit(3)", check=False, timeout=20)
    assert not any(o.ok for o in run.outcomes.values())
    assert cluster.run("import os; os.getpid()").values == pids


# ---------------------------------------------------------------- input


def answering(cluster: jdist.Cluster, code: str, answers: list[str], ranks: tuple[int, ...]) -> jdist.CellRun:
    """Run with somebody at the keyboard."""
    requests: queue.Queue[InputRequest] = queue.Queue()
    unwatch = cluster.asynchronous.watch(lambda m: requests.put(m) if isinstance(m, InputRequest) else None)
    try:
        run = cluster.submit(code, ranks, timeout=20, allow_stdin=True)
        for answer in answers:
            request = requests.get(timeout=20)
            cluster.answer_input(request.run, request.rank, answer)
        assert run.wait(25)
    finally:
        unwatch()
    return run


def test_input_on_one_rank(cluster: jdist.Cluster) -> None:
    run = answering(cluster, "int(input('how many? ')) + rank", ["41"], (1,))
    assert run.values == {1: 42}


@pytest.mark.parametrize("code", ["input('? ')", "import getpass; getpass.getpass()"])
def test_input_on_several_ranks_is_refused_with_the_way_out(cluster: jdist.Cluster, code: str) -> None:
    error = fails(cluster, f"{code}\n1", allow_stdin=True)
    assert {o.kind for o in error.outcomes.values()} == {"error"}
    assert all(o.error is not None and o.error.ename == "InputRefused" for o in error.outcomes.values())
    assert "needs a cell that runs on one rank" in str(error)


# ---------------------------------------------------------------- one after another


def test_a_run_waits_for_the_one_that_holds_its_ranks(cluster: jdist.Cluster) -> None:
    cluster.run("import time; go = False", ranks="0,1")
    first = cluster.run(
        "while not go: time.sleep(0.01)\nmark = time.monotonic()", ranks="0,1", timeout=60, background=True
    )
    second = cluster.run("time.monotonic() - mark", ranks=[1], background=True)
    other = cluster.run("rank", ranks=[2])
    assert second.behind == (first.number,)
    assert second.state == "queued"
    assert not first.is_done
    assert other.values == {2: 2}
    cluster.push(go=True, ranks=[0, 1])  # values get through while a cell runs
    assert first.wait(60)
    assert second.wait(60)
    assert second.values[1] > 0


def test_cells_of_two_clients_never_interleave_on_a_rank(cluster: jdist.Cluster) -> None:
    """Each cell opens a bracket and closes it; a second one in between would be seen."""
    cluster.run("inside, seen = 0, []")
    code = "inside += 1; seen.append(inside); __import__('time').sleep(0.002); inside -= 1"
    failed: list[BaseException] = []

    def client() -> None:
        other = jdist.attach(cluster.name)
        try:
            for _ in range(10):
                other.run(code, timeout=30)
        except BaseException as e:
            failed.append(e)
        finally:
            other.detach()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failed
    assert cluster.run("len(seen), set(seen)").values == dict.fromkeys(WORLD, (20, {1}))


def test_a_thread_that_speaks_later_keeps_its_rank(cluster: jdist.Cluster) -> None:
    cluster.run(
        "import threading, time\n"
        "go = threading.Event()\n"
        "t = threading.Thread(target=lambda: (go.wait(20), print('late', rank, flush=True)))\n"
        "t.start()"
    )
    run = cluster.run("go.set(); t.join(20); print('own', rank)")
    for rank, text in stdout(run).items():
        assert set(text.splitlines()) <= {f"late {rank}", f"own {rank}"}
        assert f"own {rank}" in text
    for rank in WORLD:
        assert f"late {rank}" in cluster.logs(rank, lines=10).text


def test_a_cancelled_background_run(cluster: jdist.Cluster) -> None:
    run = cluster.run("import time\nkept = 5\nprint('in it')\nwhile True:\n    time.sleep(0.01)", background=True)
    assert eventually(lambda: all(rank.last_line == "in it" for rank in cluster.status().ranks))
    run.cancel()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    with pytest.raises(jdist.CellInterrupted):
        run.check()
    assert cluster.run("kept").values == dict.fromkeys(WORLD, 5)


# ---------------------------------------------------------------- torch.distributed in a cell


def test_init_process_group_in_a_cell(cluster: jdist.Cluster) -> None:
    run = cluster.run("dist.init_process_group('gloo', rank=rank, world_size=4); dist.get_world_size()")
    assert run.values == dict.fromkeys(WORLD, 4)
    assert all("already formed" in text and text.count("\n") == 1 for text in stdout(run).values())
    error = fails(cluster, "dist.init_process_group('nccl')")
    assert "nccl" in str(error)
    assert "gloo" in str(error)
    assert "world of 4" in str(error)


def test_the_environment_of_torchrun_and_mpirun(cluster: jdist.Cluster) -> None:
    names = {
        "RANK": lambda r: r,
        "LOCAL_RANK": lambda r: r % 2,
        "GROUP_RANK": lambda r: r // 2,
        "WORLD_SIZE": lambda r: 4,
        "LOCAL_WORLD_SIZE": lambda r: 2,
        "OMPI_COMM_WORLD_RANK": lambda r: r,
        "OMPI_COMM_WORLD_SIZE": lambda r: 4,
        "OMPI_COMM_WORLD_LOCAL_RANK": lambda r: r % 2,
        "OMPI_COMM_WORLD_LOCAL_SIZE": lambda r: 2,
    }
    found = cluster.run(f"import os\n{{n: os.environ[n] for n in {list(names)!r}}}").values
    assert found == {r: {n: str(of(r)) for n, of in names.items()} for r in WORLD}
    master = cluster.run("os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']) > 0").values
    assert len(set(master.values())) == 1
    assert master[0][1]


# ---------------------------------------------------------------- fresh ranks


def test_setup_cells_are_replayed_on_a_fresh_rank(fresh_cluster: Any) -> None:
    own = fresh_cluster(2, 1)
    own.run("import time as clock\nprepared = rank + 7", setup=True)
    own.run("other = 1")
    own.restart([1])
    assert own.run("prepared, clock.__name__", timeout=20).values == {0: (7, "time"), 1: (8, "time")}
    assert own.run("'other' in globals()").values == {0: True, 1: False}
    assert own.run("t = torch.ones(1); dist.all_reduce(t); t.item()", timeout=20).values == {0: 2.0, 1: 2.0}
    assert [r.fresh for r in own.status().ranks] == [False, True]
