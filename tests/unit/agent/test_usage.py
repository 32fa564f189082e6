"""Usage: rates are differences of counters; the kernel's files are read as proc(5) and sysfs describe them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jdist.agent.resources import ProcessUsage, UsageReader, read_network, read_processes, with_descendants

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
HEAD = "Inter-|   Receive                    |  Transmit\n face |bytes packets ...\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def process(proc: Path, pid: int, parent: int, cpu: tuple[float, ...] = (0, 0, 0, 0), pages: int = 0) -> None:
    """``cpu``: seconds in user and system mode, of itself and of child processes that it has waited for."""
    fields = ["S", str(parent), *["0"] * 20]
    fields[11:15] = [str(int(seconds * TICK)) for seconds in cpu]
    fields[21] = str(pages)
    write(proc / str(pid) / "stat", f"{pid} (a (b) c) {' '.join(fields)}\n")


def interfaces(proc: Path, **counters: tuple[int, int]) -> None:
    lines = (
        f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n" for name, (received, sent) in counters.items()
    )
    write(proc / "self/net/dev", HEAD + "".join(lines))


def test_processes(tmp_path: Path) -> None:
    process(tmp_path, 7, 1, (1, 0.5, 2, 0.25), 3)
    write(tmp_path / "cmdline", "not a process")
    assert read_processes(tmp_path) == {7: ProcessUsage(1, 3.75, 3 * PAGE)}


def test_descendants_of_a_process_that_exists() -> None:
    parents = {7: 1, 8: 7, 9: 8, 10: 7, 20: 1}
    found = {pid: ProcessUsage(parent, 0, 0) for pid, parent in parents.items()}
    trees = with_descendants({0: 7, 1: 20, 2: 999}, found)
    assert {key: sorted(tree) for key, tree in trees.items()} == {0: [7, 8, 9, 10], 1: [20]}


def test_rates_of_a_process_are_those_of_all_its_descendants(tmp_path: Path) -> None:
    clock = iter((100.0, 102.0, 104.0))
    reader = UsageReader(tmp_path, tmp_path, lambda: next(clock))
    interfaces(tmp_path, lo=(5, 5), eth0=(1000, 0))
    process(tmp_path, 7, 1, (1, 0, 0, 0), 10)
    process(tmp_path, 8, 7, (1, 0, 0, 0))
    first = reader.read({3: 7})
    assert first.processes == {3: {"memory": 10 * PAGE}}
    assert set(first.node) == {"memory"}

    process(tmp_path, 7, 1, (2, 0, 0, 0), 12)
    process(tmp_path, 8, 7, (2, 0, 0, 0))
    interfaces(tmp_path, lo=(900, 900), eth0=(3000, 500))
    second = reader.read({3: 7})
    assert second.processes == {3: {"memory": 12 * PAGE, "cpu": 1.0}}
    assert (second.node["received"], second.node["sent"]) == (1000.0, 250.0)
    assert second.node["cpu"] >= 0

    # The child ends, and its time becomes part of its parent's; the interface starts again from 0.
    (tmp_path / "8" / "stat").unlink()
    process(tmp_path, 7, 1, (2, 0, 2.5, 0), 12)
    interfaces(tmp_path, eth0=(10, 500))
    third = reader.read({3: 7})
    assert third.processes[3]["cpu"] == 0.25
    assert third.node["received"] == 0.0


def test_a_process_that_began_since_the_last_reading_has_used_all_its_time_since_then(tmp_path: Path) -> None:
    clock = iter((100.0, 102.0))
    reader = UsageReader(tmp_path, tmp_path, lambda: next(clock))
    process(tmp_path, 7, 1, (50, 0, 0, 0))
    reader.read({0: 7})
    process(tmp_path, 9, 1, (1, 0, 0, 0))
    process(tmp_path, 10, 1, (2, 0, 0, 0))
    found = reader.read({0: 9, 1: 10}).processes
    assert (found[0]["cpu"], found[1]["cpu"]) == (0.5, 1.0), "of 0 the process was replaced, 1 is new"


@pytest.mark.parametrize(
    ("devices", "rdma", "expected"),
    [
        ((), False, (111, 222)),  # in a container: nothing is known of the devices, so all count but the loopback
        (("eth0",), False, (1, 2)),  # the bridge has counted what the device has
        (("eth0", "ib0"), False, (101, 202)),
        (("eth0", "ib0"), True, (1 + 4 * 1000, 2 + 4 * 2000)),  # IP over InfiniBand is in the port's counters
    ],
)
def test_the_network(tmp_path: Path, devices: tuple[str, ...], rdma: bool, expected: tuple[int, int]) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    interfaces(proc, lo=(7, 7), eth0=(1, 2), br0=(10, 20), ib0=(100, 200))
    for name in devices:
        write(sys / "class/net" / name / "device/uevent", "")
        write(sys / "class/net" / name / "type", "32\n" if name == "ib0" else "1\n")
    if rdma:
        write(sys / "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "1000\n")
        write(sys / "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "2000\n")
    assert read_network(proc, sys) == expected
