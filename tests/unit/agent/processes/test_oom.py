"""Out of memory: what the kernel's counters and log say, from files as the kernel writes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jdist.agent.processes.exits import OomMonitor, OomVerdict, find_cgroup, find_mounts

V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
ONE = OomVerdict("kernel", "the kernel's cgroup counted 1 oom kill")


class Machine:
    """The files of a machine below ``root``, as far as OomMonitor reads them."""

    def __init__(self, root: Path, version: int):
        self.root = root
        self.version = version
        self._write("proc/self/mountinfo", V2 if version == 2 else V1)

    def _write(self, path: str, text: str) -> None:
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def put(self, pid: int, group: str) -> None:
        """Process ``pid`` is in ``group``."""
        inside = f"0::/{group}\n" if self.version == 2 else f"4:memory:/docker/abc/{group}\n1:cpu:/\n0::/\n"
        self._write(f"proc/{pid}/cgroup", inside)

    def end(self, pid: int) -> None:
        """A zombie of cgroup v1 is in the root group."""
        self._write(f"proc/{pid}/cgroup", "4:memory:/\n0::/\n" if self.version == 1 else "")

    def count(self, group: str, kills: int) -> None:
        if self.version == 2:
            text = f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"
            self._write(f"sys/fs/cgroup/{group}/memory.events", text)
        else:
            text = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
            self._write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
            self._write(f"sys/fs/cgroup/memory/{group}/memory.oom_control", text)

    def log(self, *lines: str) -> None:
        """What /dev/kmsg has; a plain file here, which is read from where it ended."""
        (self.root / "dev").mkdir(exist_ok=True)
        with (self.root / "dev/kmsg").open("a") as f:
            f.writelines(f"6,{1000 + i},5140900,-;{line}\n" for i, line in enumerate(lines))


@pytest.fixture(params=[1, 2])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


@pytest.fixture
def watching() -> Iterator[Callable[[Machine], OomMonitor]]:
    made: list[OomMonitor] = []

    def watch(machine: Machine) -> OomMonitor:
        made.append(OomMonitor(machine.root))
        return made[-1]

    yield watch
    for each in made:
        each.close()


Watching = Callable[[Machine], OomMonitor]


def test_a_kill_that_the_cgroup_has_counted(machine: Machine, watching: Watching) -> None:
    machine.put(77, "job")
    machine.count("job", 4)
    watch = watching(machine)
    watch.watch(77)
    watch.tick()
    machine.count("job", 5)
    machine.end(77)
    assert watch.verdict(77) == ONE


def test_a_kill_without_a_count_is_somebodys(machine: Machine, watching: Watching) -> None:
    machine.put(77, "job")
    machine.count("job", 4)
    watch = watching(machine)
    watch.watch(77)
    assert watch.verdict(77) == OomVerdict("process")


def test_a_tick_between_kill_and_death_does_not_hide_it(machine: Machine, watching: Watching) -> None:
    machine.put(77, "job")
    machine.count("job", 0)
    watch = watching(machine)
    watch.watch(77)
    watch.tick()
    machine.count("job", 1)
    machine.end(77)
    watch.tick()
    assert watch.verdict(77) == ONE


def test_a_kill_of_long_ago_does_not_count(machine: Machine, watching: Watching) -> None:
    """A data loader's process, say: the rank itself is killed by hand minutes later."""
    machine.put(77, "job")
    machine.count("job", 0)
    watch = watching(machine)
    watch.watch(77)
    machine.count("job", 1)
    watch.tick()
    watch.tick()
    assert watch.verdict(77) == OomVerdict("process")


def test_two_kills_at_once_count_for_both(machine: Machine, watching: Watching) -> None:
    for pid in (77, 78):
        machine.put(pid, "job")
    machine.count("job", 0)
    watch = watching(machine)
    watch.watch(77)
    watch.watch(78)
    machine.count("job", 2)
    for pid in (77, 78):
        assert watch.verdict(pid) == OomVerdict("kernel", "the kernel's cgroup counted 2 oom kills")


def test_a_process_that_was_moved(machine: Machine, watching: Watching) -> None:
    machine.put(77, "job")
    machine.count("job", 3)
    machine.count("small", 8)
    watch = watching(machine)
    watch.watch(77)
    machine.put(77, "small")
    watch.tick()
    machine.count("small", 9)
    assert watch.verdict(77) == ONE


def test_where_nothing_counts_nothing_is_known(machine: Machine, watching: Watching) -> None:
    machine.put(77, "job")
    watch = watching(machine)
    watch.watch(77)
    watch.tick()
    assert watch.verdict(77) == OomVerdict("unknown")
    assert watch.verdict(1) == OomVerdict("unknown")


def test_the_log_names_the_process(machine: Machine, watching: Watching) -> None:
    machine.log("Out of memory: Killed process 77 (python) total-vm:9kB")
    watch = watching(machine)
    assert watch.verdict(77) == OomVerdict("unknown"), "that was before"
    machine.log(
        "Memory cgroup out of memory: Killed process 78 (jdist-rank-1) total-vm:1kB, anon-rss:1kB",
        "oom_reaper: reaped process 78 (jdist-rank-1)",
    )
    watch.tick()
    assert watch.verdict(78) == OomVerdict("kernel", "the kernel's log names it")
    watch.tick()
    watch.tick()
    assert watch.verdict(78) == OomVerdict("unknown"), "a later process may have the same number"


def test_this_machines_own_files_can_be_read() -> None:
    watch = OomMonitor()
    watch.watch(os.getpid())
    watch.tick()
    assert watch.verdict(os.getpid()).cause in ("process", "unknown")
    watch.close()


def test_find_mounts() -> None:
    assert find_mounts(V2) == {"2": ("/sys/fs/cgroup", "/")}
    assert find_mounts(V1) == {"1": ("/sys/fs/cgroup/memory", "/docker/abc"), "2": ("/sys/fs/cgroup/unified", "/")}
    assert find_mounts("nonsense\n\n") == {}


def test_find_cgroup() -> None:
    assert find_cgroup("4:cpu,memory:/a\n0::/b\n", "1") == "/a"
    assert find_cgroup("4:cpu,memory:/a\n0::/b\n", "2") == "/b"
    assert find_cgroup("0::/b\n", "1") is None
    assert find_cgroup("", "2") is None
