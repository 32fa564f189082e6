"""Which processes are a run's, and how Stop ends them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from jdist.worker.cells.children import Children

STUBBORN = "signal.signal(signal.SIGINT, lambda *_: None)"
IGNORING = "signal.signal(signal.SIGINT, signal.SIG_IGN)"


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, setting: str = "", **options: Any) -> "subprocess.Popen[bytes]":
    """A process that has come to its sleep, and ends with the test."""
    code = f"import signal, time; {setting or 'pass'}; print('up', flush=True)\nwhile True: time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options
    )
    stack.callback(process.communicate)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_those_that_the_run_has_started_and_that_listen_to_interrupts(processes: ExitStack) -> None:
    children = Children()
    earlier = started(processes)
    at_once = subprocess.Popen(["sleep", "600"])  # within the clock tick in which the run begins
    processes.callback(at_once.wait)
    processes.callback(at_once.kill)
    children.begin()
    plain, ignoring = started(processes), started(processes, IGNORING)
    daemon = started(processes, start_new_session=True)
    assert {plain.pid} == set(children.find()) & {p.pid for p in (earlier, at_once, plain, ignoring, daemon)}


def test_one_interrupt_and_a_kill_when_the_cell_is_done_with_its_own(processes: ExitStack) -> None:
    children = Children()
    children.begin()
    plain, stubborn = started(processes), started(processes, STUBBORN)
    found = {pid: began for pid, began in children.find().items() if pid in (plain.pid, stubborn.pid)}
    assert len(found) == 2
    alive = []

    def is_left_alone() -> bool:
        alive.append(stubborn.poll() is None)
        return len(alive) < 5

    children.end(found, 0.2, is_left_alone)
    assert plain.wait(30) == -signal.SIGINT
    assert stubborn.wait(30) == -signal.SIGKILL
    assert len(alive) >= 5
    assert all(alive)
