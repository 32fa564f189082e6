"""Ends: whatever a cell writes, raises or breaks, its end arrives, its rank is whole, and the next cell runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.core.errors import UsageError
from jdist.wire.values.frames import MAX_MESSAGE
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces


@pytest.fixture(scope="module")
def own(run_traces: Traces) -> Iterator[jdist.Cluster]:
    with jdist.start(2, backend="gloo", name="ends", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0)}
        cluster.run("kept = rank + 1")
        yield cluster
        run_traces.exempt = before


def run(cluster: jdist.Cluster, code: str) -> jdist.CellRun:
    """Run a cell, and see that its ranks are whole afterwards."""
    ran = cluster.run(code, check=False, timeout=60)
    assert ran.reason == "", "it ended by itself"
    assert cluster.run("kept", timeout=60).values == {0: 1, 1: 2}
    return ran


LARGE = {
    "an error's text": ("raise ValueError('x' * 35_000_000)", "ValueError", "34,960,000 characters left out"),
    "an error's name": ("raise type('E' * 70_000_000, (Exception,), {})('m')", "E" * 500, "m"),
    "a syntax error's line": ("exec('x = = ' + 'y' * 35_000_000)", "SyntaxError", "invalid syntax"),
}


@pytest.mark.parametrize("name", LARGE)
def test_errors_of_any_size(own: jdist.Cluster, name: str) -> None:
    code, ename, evalue = LARGE[name]
    error = run(own, code).outcomes[0].error
    assert error is not None
    assert error.ename.startswith(ename)
    assert evalue in error.evalue
    assert sum(map(len, error.traceback)) < 1_000_000


def test_an_error_from_many_parts_keeps_the_innermost(own: jdist.Cluster) -> None:
    links = "".join(f"def g{n}(): g{n + 1}()  # {'x' * 20_000}\n" for n in range(20))
    error = run(own, f"{links}def g20(): raise ValueError('inner')\ng0()").outcomes[0].error
    assert error is not None
    assert "inner" in error.traceback[-1]
    assert "parts of the traceback left out" in error.traceback[0]
    assert len(error.installed) == len(error.traceback)


def test_text_that_is_no_unicode(own: jdist.Cluster) -> None:
    ran = run(own, r"print('before'); print('x\ud800y'); print('after')")
    assert ran.outcomes[0].stdout == "before\nx\\ud800y\nafter\n"
    ran = run(own, r"print('a file called \udcff')")
    assert "a file called" in ran.outcomes[0].stdout
    ran = run(own, r"import jdist; jdist.log(**{'x\ud800': 1.0}); 5")
    assert ran.values == {0: 5, 1: 5}
    assert ran.metrics.names == ["x\\ud800"]
    error = run(own, r"raise ValueError('\ud800')").outcomes[0].error
    assert error is not None
    assert error.evalue == r"\ud800"


def test_a_request_with_text_that_is_no_unicode_is_refused(own: jdist.Cluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not valid Unicode cannot be sent.*ud800"):
        own.run("'\ud800'")
    own.save(tmp_path / "a\udcff")
    assert os.listdir(os.fsencode(tmp_path)) == [b"a\xff"]
    run(own, "1")


def test_a_cell_that_is_too_large_is_refused_and_the_cluster_goes_on(own: jdist.Cluster) -> None:
    with pytest.raises(UsageError, match=r"a message of [\d,]+ bytes cannot be sent: the limit is"):
        own.run("x = '" + "y" * MAX_MESSAGE + "'")
    run(own, "1")


def test_displays_that_no_message_carries(own: jdist.Cluster) -> None:
    run(own, "from IPython.display import display\ndisplay({'application/json': {'n': 2**70}}, raw=True)")


def test_a_hundred_large_displays_that_replace_each_other(own: jdist.Cluster) -> None:
    run(
        own,
        """
from IPython.display import HTML, clear_output, display
for i in range(100):
    clear_output(wait=True); display(HTML('x' * 2_000_000))
""",
    )


def test_a_namespace_that_was_cleared_has_what_cells_need(own: jdist.Cluster) -> None:
    own.run("globals().clear()")
    assert own.run("1 + 1").values == {0: 2, 1: 2}
    assert own.run("__builtins__.__name__").values == {0: "builtins", 1: "builtins"}, "nor is it a name of the user's"
    assert own.run("rank, __name__, len(Out) >= 0").values == {r: (r, "__main__", True) for r in (0, 1)}
    own.run("kept = rank + 1")


BREAK = """
kernel = get_ipython().kernel
send = kernel.session.send
def send_once_not(stream, kind, *args, **more):
    if kind == "jdist_done":
        del kernel.session.send
        raise OSError(28, "No space left on device")
    return send(stream, kind, *args, **more)
kernel.session.__dict__["send"] = send_once_not
print("written")
"""


def test_an_end_that_is_lost_on_its_way_is_replaced_by_an_error(own: jdist.Cluster) -> None:
    ran = run(own, BREAK)
    for rank in (0, 1):
        error = ran.outcomes[rank].error
        assert error is not None
        assert error.ename == "NotReported"
        assert "every name is kept" in error.evalue
        assert "written" in ran.outcomes[rank].stdout


SLOW = """
class Slow(Exception):
    def __str__(self):
        import time
        print("asked", flush=True)
        time.sleep(10**6)
raise Slow()
"""


def test_stop_ends_the_wait_for_the_text_of_an_error(own: jdist.Cluster) -> None:
    texts: list[str] = []
    run = own.run(SLOW, background=True)
    run.watch(lambda m: texts.extend(getattr(item, "text", "") for item in getattr(m, "items", ())))
    assert eventually(lambda: "asked" in "".join(texts))
    run.cancel()
    assert run.wait(60)
    assert {outcome.kind for outcome in run.outcomes.values()} == {"interrupted"}, "no rank was replaced"
    assert own.run("kept").values == {0: 1, 1: 2}
