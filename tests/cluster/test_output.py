"""Much output: nothing is lost, every count is exact, the notebook stays small, and no rank ever waits for a reader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import zmq

import jdist
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Output, Tail, Text
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.screen import Update
from support.waits import eventually

LINES = 100_000
MESSAGES = 3000
"""More than zmq keeps for a listener unless it is told otherwise."""
IOPUB = 2
"""In the name of a kernel's socket, see jdist/agent/processes/kernel.py."""
WORLD = range(4)
SAVED_CELL = 1 << 20
"""Bytes that a cell with four ranks' floods may take in the saved notebook."""


class Recorded:
    """A display that keeps what it was shown last, and how much it was shown in all."""

    def __init__(self, bundle: Mapping[str, str]):
        self.bundle = bundle
        self.sent = 0
        self.update(bundle)

    def update(self, bundle: Mapping[str, str]) -> None:
        self.bundle = bundle
        self.sent += sum(len(text) for text in bundle.values())


class RecordingScreen:
    """A screen on which updates are possible."""

    is_live = True

    def __init__(self) -> None:
        self.shown: list[Recorded] = []

    def show(self, bundle: Mapping[str, str]) -> Update:
        self.shown.append(Recorded(bundle))
        return self.shown[-1].update

    def ask(self, prompt: str, is_password: bool) -> str:
        raise AssertionError(f"nobody asks in these tests: {prompt}")


def streams(run: jdist.CellRun) -> dict[tuple[int, str], tuple[str, Tail | None]]:
    """``{(rank, stream): (text that travelled, its newest tail)}`` of a finished run."""
    text: dict[tuple[int, str], list[str]] = {}
    tails: dict[tuple[int, str], Tail] = {}

    def look(message: Message | None) -> None:
        for item in message.items if isinstance(message, Output) else ():
            if isinstance(item, Text):
                for rank in item.ranks:
                    text.setdefault((rank, item.stream), []).append(item.text)
            elif isinstance(item, Tail):
                tails[item.rank, item.stream] = item

    run.watch(look)
    return {key: ("".join(parts), tails.get(key)) for key, parts in text.items()}


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_on_every_rank(cluster: jdist.Cluster, stream: str) -> None:
    screen = RecordingScreen()
    run = cluster.submit(
        f"import sys\nfor i in range({LINES}): print('flood', rank, i, file=sys.{stream})", tuple(WORLD), timeout=100
    )
    RunDisplay(cluster, run, screen).follow()
    run.check()
    found = streams(run)
    for rank in WORLD:
        head, tail = found[rank, stream]
        assert tail is not None
        expected = [f"flood {rank} {i}" for i in range(LINES)]
        first, last = head.splitlines(), tail.text.splitlines()
        assert first == expected[: len(first)]
        assert last == expected[-len(last) :]
        assert len(first) + tail.lines + len(last) == LINES
        left_out = expected[len(first) : LINES - len(last)]
        assert tail.chars == sum(len(line) + 1 for line in left_out)
        assert log_lines(cluster, rank)[-LINES:] == expected
    assert len(screen.shown) == 1
    assert sum(len(t) for t in screen.shown[0].bundle.values()) < SAVED_CELL
    assert f"[3] flood 3 {LINES - 1}" in screen.shown[0].bundle["text/plain"]


def log_lines(cluster: jdist.Cluster, rank: int) -> list[str]:
    return Path(cluster.logs(rank, lines=1).path).read_text().splitlines()


def test_output_below_the_limit_is_whole(cluster: jdist.Cluster) -> None:
    run = cluster.run("for i in range(1500): print('line', rank, i)", timeout=30)
    for rank in WORLD:
        assert run.outcomes[rank].stdout == "".join(f"line {rank} {i}\n" for i in range(1500))
        assert streams(run)[rank, "stdout"][1] is None


def test_one_line_without_an_end(cluster: jdist.Cluster) -> None:
    """Ten megabytes without a newline are capped as well, and the rank's log has them."""
    run = cluster.run("print('x' * 10_000_000, end='')", ranks=[1], timeout=30)
    head, tail = streams(run)[1, "stdout"]
    assert tail is not None
    assert len(head) + tail.chars + len(tail.text) == 10_000_000
    assert len(head) < SAVED_CELL
    assert log_lines(cluster, 1)[-1].endswith("x" * 10_000_000)
    cluster.run("print()", ranks=[1])


def test_a_progress_bar_stays_one_line(cluster: jdist.Cluster) -> None:
    screen = RecordingScreen()
    code = (
        "import tqdm\nfor _ in tqdm.tqdm(range(3000), desc=f'rank {rank}', mininterval=0, miniters=1, ncols=60): pass"
    )
    run = cluster.submit(code, tuple(WORLD), timeout=60)
    RunDisplay(cluster, run, screen).follow()
    run.check()
    plain = screen.shown[0].bundle["text/plain"]
    assert plain.count("100%") <= len(WORLD)
    assert "3000/3000" in plain
    assert " 50%" not in plain
    assert len(plain) < 2000


@pytest.mark.parametrize("fd", [1, 2])
def test_ten_megabytes_to_the_descriptor_never_block(cluster: jdist.Cluster, fd: int) -> None:
    code = (
        "import os\n"
        "data = (b'y' * 99 + b'\\n') * 100_000\n"
        "sent = 0\n"
        f"while sent < len(data): sent += os.write({fd}, data[sent:sent + 65536])\n"
        "sent"
    )
    run = cluster.run(code, timeout=40)
    assert run.values == dict.fromkeys(WORLD, 10_000_000)
    for rank in WORLD:
        head, tail = streams(run)[rank, "stdout" if fd == 1 else "stderr"]
        assert tail is not None
        assert head.count("\n") + tail.lines + tail.text.count("\n") == 100_000


def test_many_displays_are_capped(cluster: jdist.Cluster) -> None:
    code = "from IPython.display import HTML, display\nfor i in range(20): display(HTML('z' * 500_000))"
    run = cluster.run(code, ranks=[0], timeout=40)
    sizes: list[int] = []

    def look(message: Message | None) -> None:
        for item in message.items if isinstance(message, Output) else ():
            data: dict[str, Any] = getattr(item, "data", {})
            sizes.append(sum(len(str(v)) for v in data.values()))

    run.watch(look)
    assert len(sizes) == 20
    assert sum(sizes) < 5 << 20


def test_the_next_cell_comes_at_once_after_a_flood(cluster: jdist.Cluster) -> None:
    cluster.run(f"for i in range({LINES // 2}): print(i)", timeout=60)
    run = cluster.run("print('after', rank)", timeout=20)
    assert {r: o.stdout for r, o in run.outcomes.items()} == {r: f"after {r}\n" for r in WORLD}


def test_a_listener_that_is_late_misses_nothing(cluster: jdist.Cluster) -> None:
    """As an agent on a busy machine: what it has not taken yet waits in the rank, a cell's end among it."""
    path = cluster.run("get_ipython().kernel.parent.connection_file", ranks=[0]).values[0]
    with zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.rcvhwm = 1
        listener.subscribe(b"")
        listener.connect(f"ipc://{json.loads(Path(path).read_text())['ip']}-{IOPUB}")
        here = "print('here', flush=True)"
        assert eventually(lambda: cluster.run(here, ranks=[0]) and listener.poll(100), 20), "nothing is heard"
        cluster.run(f"for i in range({MESSAGES}):\n    print(f'said {{i}}', flush=True)", ranks=[0], timeout=100)
        said: list[bytes] = []
        is_over = False
        while not is_over and listener.poll(10_000):
            message = b" ".join(listener.recv_multipart())
            said += re.findall(rb"said (\d+)", message)
            is_over = bool(said) and b"jdist_done" in message
    assert [int(number) for number in said] == list(range(MESSAGES))
    assert is_over
