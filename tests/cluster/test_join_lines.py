"""Joining by a line: what it is good for, for how long, and what both sides say when it is not."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

import jdist
from jdist.client.lifecycle.start import Progress, Waiting, join_here
from jdist.client.threads import bridge
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import Resized
from jdist.core.messages.status import Notice
from jdist.wire.transport.invitations import JoinLine
from support.cells import ALL_REDUCE
from support.waits import eventually

LINE = re.compile(r"echo (jdist1\.\S+) \| jdist join -")


class Terminal:
    """Somebody's terminal on a node, in which a line is run."""

    def __init__(self, line: str, *options: str, way: str = "stdin", log: Path | None = None):
        command = [sys.executable, "-m", "jdist", "join", *options, "-" if way == "stdin" else line]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdin is not None
        if way == "stdin":
            self.process.stdin.write(line + "\n")
        self.process.stdin.close()

    def end(self) -> tuple[int, str]:
        """Exit code and what it wrote."""
        assert self.process.stdout is not None
        with self.process.stdout:
            text = self.process.stdout.read()
        return self.process.wait(30), text


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
        if terminal.process.stdout and not terminal.process.stdout.closed:
            print(*terminal.end())  # pytest shows it where the test failed


class Start:
    """A start in a thread, as its user sees it."""

    def __init__(self, start: Callable[..., jdist.Cluster], **options: object):
        self.shown: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self.clusters: list[jdist.Cluster] = []
        self._start = start
        self._thread = threading.Thread(target=self._run, kwargs=options)
        self._thread.start()

    def _run(self, **options: object) -> None:
        try:
            self.clusters.append(self._start(launcher="join", on_progress=self.shown.put, **options))
        except jdist.JdistError as e:
            self.shown.put(Notice(str(e)))

    def line(self) -> str:
        while True:
            shown = self.shown.get(timeout=30)
            if isinstance(shown, Waiting) and (found := LINE.search(shown.text)):
                return found[1]
            assert not isinstance(shown, Notice), shown

    def cluster(self) -> jdist.Cluster:
        self._thread.join(60)
        return self.clusters[0]


def test_a_node_with_another_version_is_refused_at_once_with_both_versions(
    fresh_cluster: Callable[..., jdist.Cluster], terminals: list[Terminal]
) -> None:
    start = Start(fresh_cluster, nproc_per_node=1, nnodes=1)
    line = start.line()
    program = "import jdist.core as c; c.__version__ = '9.9'; from jdist.commands import main; main(['join', '-'])"
    node = subprocess.run(
        [sys.executable, "-c", program], input=f"{line}\n", capture_output=True, text=True, timeout=60, check=False
    )
    assert f"it has jdist 9.9 (protocol {PROTOCOL}), the controller {jdist.__version__} ({PROTOCOL})" in node.stderr
    terminals.append(Terminal(line))
    start.cluster().stop()


def test_nodes_come_in_any_order_and_by_any_way(
    fresh_cluster: Callable[..., jdist.Cluster], terminals: list[Terminal], tmp_path: Path
) -> None:
    start = Start(fresh_cluster, nproc_per_node=1, nnodes=3)
    line = start.line()
    file = tmp_path / "line"
    file.write_text(line + "\n")
    terminals.append(Terminal(line, "--node-rank", "2"))
    terminals.append(Terminal(str(file), way="argv"))
    damaged = Terminal(line[:60] + "A" + line[61:])
    assert damaged.end()[0] == 2
    assert not start.clusters
    terminals.append(Terminal(line, way="argv"))
    own = start.cluster()
    assert own.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(3), 3.0)
    seen = " ".join(Path(f"/proc/{t.process.pid}/cmdline").read_text() for t in terminals)
    assert "jdist1." not in seen, "keys stand in argv, where any user of the host can read them"
    one_too_many = Terminal(line)
    code, text = one_too_many.end()
    assert code == 1
    assert "refused by the controller: all 3 nodes of cluster" in text
    own.stop()
    ends = [t.end() for t in terminals]
    assert [code for code, _ in ends] == [0, 0, 0]
    assert "node 2 of 3, rank" in ends[0][1]
    assert all("the cluster has been stopped" in text for _, text in ends)


def test_a_line_that_is_void_is_refused_on_both_sides_and_cuts_nobody_off(
    fresh_cluster: Callable[..., jdist.Cluster], terminals: list[Terminal]
) -> None:
    start = Start(fresh_cluster, nproc_per_node=1, nnodes=2)
    first = start.line()
    terminals.append(Terminal(first))
    assert terminals[0].process.poll() is None
    terminals.append(Terminal(first))
    own = start.cluster()
    notices: list[str] = []
    own.asynchronous.watch(lambda m: notices.append(m.text) if isinstance(m, Notice) else None)
    short = own.invite(0.001)
    code, text = Terminal(short).end()
    assert code == 1
    assert "expired or was revoked; ask the user of the cluster for another" in text
    assert eventually(lambda: any("its join line has expired or was revoked" in n for n in notices))
    last = own.invite(revoke=True)
    assert Terminal(first).end()[0] == 1
    code, text = Terminal(last).end()
    assert "all 2 nodes" in text, "a line that was made after the others were revoked opens"
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    own.stop()


def test_a_server_becomes_a_node(fresh_cluster: Callable[..., jdist.Cluster], terminals: list[Terminal]) -> None:
    start = Start(fresh_cluster, nproc_per_node=1, nnodes=2)
    line = start.line()
    terminals.append(Terminal(line))
    pid = join_here(line)
    own = start.cluster()
    assert own.run("import os; os.getppid()").values[1] is not None
    assert pid != os.getpid()
    own.stop()
    with pytest.raises(jdist.LaunchError, match=r"this machine did not become a node: .*does not answer at port"):
        join_here(line)


def test_a_node_is_added_by_a_line_which_is_of_no_use_once_that_is_given_up(
    fresh_cluster: Callable[..., jdist.Cluster], terminals: list[Terminal]
) -> None:
    own = fresh_cluster(1, 1)
    told: queue.SimpleQueue[Waiting] = queue.SimpleQueue()

    def begin() -> tuple[Future[Resized], str]:
        """The node that is being added, and the line to run on it."""
        work = own.asynchronous.add_node(1, launcher="join", timeout=600, on_progress=told.put)
        future, _ = bridge().begin(work)
        waiting = told.get(timeout=30)
        assert waiting.is_instruction
        found = re.search(
            r"run this on the node to add .*\necho (jdist1\.\S+) \| jdist join --node-rank 1 -", waiting.text
        )
        assert found, waiting.text
        return future, found[1]

    given_up, line = begin()
    given_up.cancel()
    other = jdist.attach(own.name)
    wanted, _ = bridge().begin(other.asynchronous.add_node(1))  # refused as long as the first place is open
    assert wanted.result(60).added == (1,)
    code, text = Terminal(line, "--node-rank", "1").end()
    assert (code, "refused by the controller" in text) == (1, True), text
    other.detach()
    own.remove([1])

    added, line = begin()
    terminals.append(Terminal(line, "--node-rank", "1"))
    assert added.result(60).added == (1,)
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    own.stop()


def test_what_is_no_line_of_this_cluster(tmp_path: Path) -> None:
    nowhere = JoinLine("c0ffee", ("127.0.0.1",), 1, 1, "x" * 40, jdist.wire.transport.keys.KeyPair.make()).encode()
    code, text = Terminal(nowhere).end()
    assert code == 1
    assert "does not answer at port 1 of 127.0.0.1: is the cluster still there" in text
    for wrong in ("jdist1.nonsense", "nonsense", ""):
        code, text = Terminal(wrong).end()
        assert code == 2
        assert "join line" in text
    code, text = Terminal("nonsense", way="argv").end()
    assert code == 2
    assert "neither a join line nor a file" in text
