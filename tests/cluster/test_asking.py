"""Completion and Shift-Tab from the ranks' names: in a real kernel, with busy ranks, and with ranks that hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.completer import CompletionContext

import jdist
from jdist.notebook.completion import RankCompleter
from jdist.notebook.output.screen import TerminalScreen
from jdist.notebook.session import Session
from support.notebook import Notebook
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

LONG = 90.0
SOON = 10.0
"""For one question: far more than the deadline, far less than what one takes whose answer is waited for."""


@pytest.fixture
def names(cluster: jdist.Cluster) -> Iterator[RankCompleter]:
    session = Session(TerminalScreen(), {}, "test")
    session.use(cluster)
    yield RankCompleter(session)
    session.use(None)


def spaced(text: str | None) -> str | None:
    """With spaces and hyphens at which a line may be broken."""
    return text and text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NON-BREAKING HYPHEN}", "-")


def context(code: str) -> CompletionContext:
    *before, line = code.split("\n")
    return CompletionContext(line.split(" ")[-1], code, len(line), len(before), 500)


def offered(names: RankCompleter, code: str) -> dict[str, str | None]:
    result = names.match(context(code))
    assert result["suppress"] is bool(result.get("matched_fragment") is not None)
    return {c.text: spaced(c.type) for c in result["completions"]}


def soon(names: RankCompleter, code: str) -> dict[str, str | None]:
    """Once the ranks are quick enough for it, on a machine with other things to do."""
    found: dict[str, Any] = {}
    assert eventually(lambda: found.update(offered(names, code)) or found, LONG), code
    return found


def test_names_come_from_the_ranks(cluster: jdist.Cluster, names: RankCompleter) -> None:
    cluster.run("xylophone = torch.ones(2)\nif rank == 1: xylem = 3\nxyl = rank if rank < 2 else 'text'")
    assert eventually(lambda: len(offered(names, "%%dist\nxyl")) == 3, LONG)
    everywhere = {"xylophone": "Tensor", "xyl": "int on 0-1, str on 2-3", "xylem": "int only on 1"}
    assert eventually(lambda: offered(names, "%%dist\nxyl") == everywhere, LONG), offered(names, "%%dist\nxyl")
    assert next(iter(soon(names, "%%dist -r 0\nprint(xylo"))) == "xylophone"
    assert "requires_grad" in soon(names, "%%dist\n\nxylophone.req")
    assert offered(names, "xyl") == {}
    names._session.is_auto = True
    assert "xylophone" in soon(names, "y = 1\nxyl")


def test_the_cells_ranks_are_asked(cluster: jdist.Cluster, names: RankCompleter) -> None:
    cluster.run("if rank == 3: zebra = 1")
    assert eventually(lambda: soon(names, "%%dist -r 2,3\nzeb") == {"zebra": "int only on 3"}, LONG)
    assert soon(names, "%%dist -r 3\nzeb") == {"zebra": "int"}


def test_ranks_answer_while_they_are_busy(cluster: jdist.Cluster, names: RankCompleter) -> None:
    run = cluster.run_async("busily = 1\nwhile True: pass", ranks="0-1")
    try:
        assert eventually(lambda: "busily" in offered(names, "%%dist -r 0\nbusi"), LONG)
    finally:
        cluster.interrupt()
        run.wait()


@pytest.mark.parametrize("code", ["%%dist\nimport tor", "%%dist -r", "%%dist\n%time x", "%%time\nx", "%%dist\n"])
def test_what_is_not_the_ranks_is_left_to_the_notebook(names: RankCompleter, code: str) -> None:
    assert offered(names, code) == {}


def test_a_rank_that_hangs_is_not_waited_for(cluster: jdist.Cluster, names: RankCompleter) -> None:
    cluster.run("quetzal = 1")
    soon(names, "%%dist\nquetz")
    pids = [row.pid for row in cluster.status().ranks]
    os.kill(pids[2], signal.SIGSTOP)
    try:
        took: list[float] = []

        def timed(ask: Callable[[], Any]) -> Any:
            began = time.monotonic()
            found = ask()
            took.append(time.monotonic() - began)
            return found

        both = lambda: offered(names, "%%dist -r 0,2\nquetz")  # noqa: E731
        assert eventually(lambda: timed(both) == {"quetzal": "int"}, LONG), "rank 0 may need several questions"
        assert timed(lambda: offered(names, "%%dist -r 2\nquetz")) == {}
        assert timed(lambda: names.describe("%%dist -r 2\nquetzal", 20)) == ""
        assert max(took) < SOON
    finally:
        os.kill(pids[2], signal.SIGCONT)
    assert eventually(lambda: offered(names, "%%dist -r 2\nquetz") == {"quetzal": "int"}, LONG)


def test_what_a_name_is(cluster: jdist.Cluster, names: RankCompleter) -> None:
    cluster.run("def trains(lr):\n    'Goes on.'\nif rank == 0: depth = 3\nelse: depth = torch.ones(2)")
    code = "%%dist\ntrains(0.1)"
    text = eventually(lambda: names.describe(code, 10), LONG)
    assert text.startswith("Type:      function")
    assert "Signature: trains(lr)" in text
    assert "Goes on." in text
    assert eventually(lambda: "[1-3] Type:      torch.Tensor" in names.describe("%%dist\ndepth", 12), LONG)
    assert names.describe("trains", 3) == ""
    assert names.describe("%%dist\nno_such_name", 12) == ""


def test_without_a_cluster_nothing_is_asked() -> None:
    names = RankCompleter(Session(TerminalScreen(), {}, "test"))
    assert offered(names, "%%dist\nx") == {}
    assert names.describe("%%dist\nx", 8) == ""


def test_it_comes_and_goes_with_the_extension() -> None:
    matchers: list[Any] = []
    kernel = SimpleNamespace(do_inspect=lambda *_: {"found": False})
    own = kernel.do_inspect
    shell = SimpleNamespace(Completer=SimpleNamespace(custom_matchers=matchers), kernel=kernel)
    names = RankCompleter(Session(TerminalScreen(), {}, "test"))
    names.install(shell)
    assert len(matchers) == 1
    assert kernel.do_inspect("x", 0) == {"found": False}
    names.remove()
    assert matchers == []
    assert kernel.do_inspect is own


@pytest.fixture(scope="module")
def notebook(run_traces: Traces) -> Iterator[Notebook]:
    before = set(run_traces.exempt)
    notebook = Notebook()
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    yield notebook
    notebook.close()
    run_traces.exempt = before


def test_in_a_real_kernel(notebook: Notebook, cluster: jdist.Cluster) -> None:
    cluster.run("wombat = torch.ones(2)\nwomble = 1 if rank else 'a'")
    # jedi, which has a cache in the user's home, may take long to say what the notebook itself has
    notebook.run(f"%config IPCompleter.use_jedi = False\nwom_here = 1\n%dist attach {cluster.name}")

    def complete(code: str) -> dict[str, Any]:
        return notebook.client.complete(code, reply=True, timeout=LONG)["content"]

    def inspect(code: str) -> dict[str, Any]:
        return notebook.client.inspect(code, reply=True, timeout=LONG)["content"]

    def completed() -> tuple[Any, ...]:
        found = complete("%%dist\nprint(wom")
        types = {t["text"]: spaced(t["type"]) for t in found["metadata"]["_jupyter_types_experimental"]}
        return found["matches"], found["cursor_start"], found["cursor_end"], types

    known = {"womble": "str on 0, int on 1-3", "wombat": "Tensor"}
    assert eventually(lambda: completed() == (["wombat", "womble"], 13, 16, known), LONG), completed()
    assert complete("wom_here.bit_le")["matches"] == [".bit_length"]
    assert complete("%%dist\nwom_here.bit_le")["matches"] == [".bit_length"], "what no rank has may be the notebook's"
    assert eventually(lambda: "float32 [2]" in inspect("%%dist\nwombat")["data"].get("text/plain", ""), LONG)
    assert "int" in inspect("wom_here")["data"]["text/plain"]
    notebook.run("%dist auto on")
    assert eventually(lambda: "wombat" in complete("womba")["matches"], LONG)
    notebook.run("%dist auto off\n%unload_ext jdist")
    assert "wombat" not in complete("womba")["matches"]
