"""Interrupting C code that holds the interpreter lock: what a plain kernel stops, a rank stops, too, with its names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jdist
from jdist.core.messages.status import Notice
from support.waits import eventually

Start = Callable[..., jdist.Cluster]

INTERRUPTIBLE = {
    "a regular expression": "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
    "long arithmetic": "7 ** 10 ** 8",
    "sorting": "sorted(range(10 ** 7), key=lambda x: re.match(r'(a+)+$', 'a' * 40 + 'b'))",
}


@pytest.mark.parametrize("code", INTERRUPTIBLE.values(), ids=list(INTERRUPTIBLE))
def test_c_code_that_looks_for_signals_is_interrupted(cluster: jdist.Cluster, code: str) -> None:
    cluster.run("import re; kept = object(); before = id(kept)")
    generation = cluster.generation
    run = cluster.run(f"if rank == 1:\n    {code.replace(chr(10), chr(10) + '    ')}", timeout=1.0, check=False)
    assert run.outcomes[1].kind == "timeout"
    assert set(cluster.run("id(kept) == before").values.values()) == {True}
    assert cluster.generation >= generation


def test_the_cells_own_handler_is_interrupted_once(cluster: jdist.Cluster) -> None:
    code = """
import re, time
caught = 0
if rank == 1:
    try:
        re.match(r'(a+)+$', 'a' * 40 + 'b')
    except KeyboardInterrupt:
        caught += 1
        try:
            time.sleep(1.5)
        except KeyboardInterrupt:
            caught += 1
"""
    cluster.run(code, timeout=1.0, check=False)
    assert cluster.run("caught", ranks=[1]).values == {1: 1}


def test_c_code_that_does_not_costs_the_names_and_the_notice_says_why(fresh_cluster: Start) -> None:
    own = fresh_cluster(3, interrupt_grace=3.0)
    notices: list[Notice] = []
    own.asynchronous.watch(lambda message: notices.append(message) if isinstance(message, Notice) else None)
    run = own.run("x = 1\nif rank == 1:\n    sum(range(10 ** 11))", timeout=1.0, check=False)
    assert run.outcomes[1].kind == "lost"
    assert own.run("'x' in globals()").values == {0: True, 1: False, 2: True}
    assert eventually(lambda: [n for n in notices if "fresh" in n.text])
    (fresh,) = [n for n in notices if "fresh" in n.text]
    assert "C code held the interpreter lock at cell line 3" in fresh.text
    assert fresh.remedies[0].effect == "copy what it shared with ranks 0, 2"
    assert [(r.action, r.name) for r in fresh.remedies] == [("restore", "1 --from 0 NAMES")]


def is_in_c_code(cluster: jdist.Cluster) -> bool:
    """Whether the agent says so of rank 0; it speaks for any rank that does not answer soon, as on a busy machine."""
    return ["at cell line 3" in look.doing.state for look in cluster.look([0]).values()] == [True]


def test_a_rank_in_c_code_is_killed_at_the_end_and_its_line_is_named(fresh_cluster: Start) -> None:
    own = fresh_cluster(1, end_grace=1.0)
    notices: list[str] = []
    own.asynchronous.watch(lambda message: notices.append(message.text) if isinstance(message, Notice) else None)
    run = own.run("import time\nbegun = True\nsum(range(10 ** 11))", background=True)
    assert eventually(lambda: is_in_c_code(own))
    own.stop()
    assert run.is_done
    assert any("rank 0" in text and "cell line 3" in text for text in notices)


def test_a_rank_in_c_code_that_looks_for_signals_ends_as_a_kernel(fresh_cluster: Start) -> None:
    own = fresh_cluster(1)
    run = own.run(
        "import re, atexit\natexit.register(print, 'bye')\nre.match(r'(a+)+$', 'a' * 40 + 'b')", background=True
    )
    assert eventually(lambda: is_in_c_code(own))
    late: list[object] = []
    run.watch(late.append)
    run.on_late = late.append
    own.stop()
    assert "bye" in str(late)
