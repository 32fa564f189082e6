"""Bed: hosts as namespaces, a bridge that the controller listens on and a cable to each node.

A node has its own network, host name, ``/etc/hosts``, ``/tmp``, ``/dev/shm`` and home directory; that two of
them are on one machine cannot be seen from inside. They share the processes' numbers, and the rest of the file system.
Addresses and names are this test run's own, so that two runs on one machine do not meet. The namespaces live as long as
a process of each node's that ends with this one.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jdist
from jdist.launch.join import LocalLauncher
from support.lacking import lacking

NNODES = 3
_TMP, _SHM, _HOME = Path("/tmp"), Path("/dev/shm"), Path("~root").expanduser()
_HOLD = """
set -e
name=$1 hosts=$2; shift 2
[ -z "$name" ] || hostname "$name"
mount --bind "$hosts" /etc/hosts
while [ $# -gt 0 ]; do
  own=$1 place=$2 count=$3; shift 3
  for kept in "${@:1:count}"; do mkdir -p "$own${kept#$place}"; mount --bind "$kept" "$own${kept#$place}"; done
  shift "$count"
  mount --rbind "$own" "$place"
done
echo ready
exec cat
"""


def call(*words: str) -> None:
    """Run a program that is there to change something; what it complains of is the error's text."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class _Held:
    """Namespaces that live as long as this object's process."""

    def __init__(self, flags: Sequence[str], arguments: Sequence[str]):
        self._flags = flags
        self._process = subprocess.Popen(
            ["unshare", *flags, "--propagation", "private", "bash", "-c", _HOLD, "hold", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        out = self._process.stdout
        if out is None or out.readline() != b"ready\n":
            _, error = self._process.communicate()
            raise OSError(f"unshare {' '.join(flags)}: {error.decode().strip()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self.pid), *self._flags, *argv]

    def end(self) -> None:
        self._process.communicate()


class Node:
    """One host of the bed."""

    def __init__(self, name: str, address: str, directory: Path):
        self.name = name
        """Its host name, which every node resolves."""
        self.address = address
        self.directory = directory
        """For files of its daemons: seen under this path from inside and outside; removed with the bed."""
        self.tmp, self.shm, self.home = directory / "tmp", directory / "shm", directory / "home"
        """What is ``/tmp``, ``/dev/shm`` and the user's home directory on it."""
        self._hosts = directory / "hosts"
        self._held: _Held | None = None

    @property
    def held(self) -> _Held:
        if self._held is None:
            raise OSError(f"{self.name} is not up")
        return self._held

    def up(self, hosts: str) -> None:
        places = []
        for own, place in ((self.tmp, _TMP), (self.shm, _SHM), (self.home, _HOME)):
            own.mkdir(parents=True)
            own.chmod(0o1777)
            kept = _needed_under(place)
            places += [str(own), str(place), str(len(kept)), *kept]
        self._hosts.write_text(hosts)
        self._held = _Held(["--net", "--uts", "--mount"], [self.name, str(self._hosts), *places])

    def down(self) -> None:
        if self._held is not None:
            self._held.end()

    def command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as run on this node, in the directory ``/``. The process is the program itself, with its number.

        The test run's folder for temporary files is not one of the node's, which has a ``/tmp`` of its own.
        """
        return self.held.command(["env", "-u", "TMPDIR", *argv])

    def run(self, *argv: str) -> str:
        """What a program prints there. Raises OSError with its complaint."""
        done = subprocess.run(self.command(argv), capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise OSError(f"{' '.join(argv)} on {self.name}: {done.stderr.strip()}")
        return done.stdout

    @contextlib.contextmanager
    def sending_at(self, rate: str) -> Iterator[None]:
        """Meanwhile it sends no more than that."""
        bucket = ("tbf", "rate", rate, "burst", "512kb", "latency", "200ms")
        try:
            self.run("tc", "qdisc", "add", "dev", "eth0", "root", *bucket)
        except OSError as e:
            lacking(f"tc has no token bucket here: {e}")
        try:
            yield
        finally:
            self.run("tc", "qdisc", "del", "dev", "eth0", "root")

    @contextlib.contextmanager
    def small_disk(self, *folders: Path) -> Iterator[Disk]:
        """Meanwhile these folders of its own are on one small disk, which begins empty."""
        disk = Disk(self, self.directory / "disk")
        disk.path.mkdir(exist_ok=True)
        with contextlib.ExitStack() as mounted:

            def mount(*words: str) -> None:
                self.run("mount", *words)
                mounted.callback(self.run, "umount", "-l", words[-1])

            mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk.path))
            for folder in folders:
                folder.mkdir(exist_ok=True)
                self.run("mkdir", "-m", "1777", str(disk.path / folder.name))
                mount("--bind", str(disk.path / folder.name), str(folder))
            yield disk

    @contextlib.contextmanager
    def own_name_on_loopback(self) -> Iterator[None]:
        """Meanwhile its own name resolves to 127.0.1.1 on it, as an installer of Debian's leaves it."""
        before = self._hosts.read_text()
        others = [line for line in before.splitlines() if self.name not in line.split()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {self.name}", *others[1:], ""]))
        try:
            yield
        finally:
            self._hosts.write_text(before)

    def left(self) -> list[str]:
        """What jdist has in its ``/tmp`` and ``/dev/shm``, logs left out."""
        found = [p for folder in (self.tmp, self.shm) for p in folder.glob("jdist-*")]
        return [str(p) for p in found if not p.name.startswith("jdist-logs-")]


class Disk:
    """A disk of a node's, which can be filled."""

    def __init__(self, node: Node, path: Path):
        self.path = path
        self._node = node

    def fill(self) -> None:
        with contextlib.suppress(OSError):  # it is full: that is its end
            self._node.run("dd", "if=/dev/zero", f"of={self.path}/ballast", "bs=4k")

    def free(self) -> None:
        self._node.run("rm", f"{self.path}/ballast")


class Bed:
    """``nodes`` joined by a bridge to this machine, the head."""

    def __init__(self, mark: int, nnodes: int = NNODES):
        self._name = f"jd{mark:x}"
        self._net = f"10.{64 + mark % 64}.{mark // 64 % 256}"
        self.head = f"{self._net}.1"
        """This machine's address on the bridge: where controllers listen."""
        self.head_name = f"{self._name}head"
        """What nodes may call it."""
        self.directory = Path("/run") / self._name
        """Seen on all nodes alike, as ``/tmp`` is not."""
        self.nodes = [
            Node(f"{self._name}n{n}", f"{self._net}.{11 + n}", self.directory / f"n{n}") for n in range(nnodes)
        ]
        self._slow: set[int] = set()
        self._names: _Held | None = None

    @property
    def bridge(self) -> str:
        """Its name on this machine."""
        return f"{self._name}b"

    @property
    def hosts(self) -> str:
        """The hosts file of each: all names."""
        known = [("127.0.0.1", "localhost"), (self.head, self.head_name), *((n.address, n.name) for n in self.nodes)]
        return "".join(f"{address} {name}\n" for address, name in known)

    def up(self) -> None:
        """Raises OSError where this machine cannot have namespaces."""
        bridge = self.bridge
        self.directory.mkdir()
        call("ip", "link", "add", bridge, "type", "bridge")
        call("ip", "addr", "add", f"{self.head}/24", "dev", bridge)
        call("ip", "link", "set", bridge, "up")
        for n, node in enumerate(self.nodes):
            node.up(self.hosts)
            peer = ("type", "veth", "peer", "name", "eth0", "netns", str(node.held.pid))
            call("ip", "link", "add", self._cable(n), *peer)
            call("ip", "link", "set", self._cable(n), "master", bridge, "up")
            node.run("ip", "link", "set", "lo", "up")
            node.run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")
            node.run("ip", "link", "set", "eth0", "up")
        hosts = self.directory / "hosts"
        hosts.write_text(self.hosts + Path("/etc/hosts").read_text())
        self._names = _Held(["--mount"], ["", str(hosts)])

    def down(self) -> None:
        for n, node in enumerate(self.nodes):
            with contextlib.suppress(OSError):  # it may not have come up; and a network's end is not awaited
                call("ip", "link", "del", self._cable(n))
            node.down()
        if self._names is not None:
            self._names.end()
        with contextlib.suppress(OSError):
            call("ip", "link", "del", self.bridge)
        shutil.rmtree(self.directory, ignore_errors=True)

    def command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as run on this machine, where the nodes' names are known to it."""
        if self._names is None:
            raise OSError("the bed is not up")
        return self._names.command(argv)

    def _cable(self, node_rank: int) -> str:
        return f"{self._name}v{node_rank}"

    # ------------------------------------------------------------ faults

    def shut_out(self, port: int) -> None:
        """Let no node open a connection to this machine: what it sends vanishes, but for answers from ``port``."""
        for node in self.nodes:
            nowhere, table = f"{self._net}.250", "77"
            node.run("ip", "neigh", "replace", nowhere, "lladdr", "02:00:00:00:00:99", "dev", "eth0")
            node.run("ip", "route", "replace", self.head, "via", nowhere, "dev", "eth0", "table", table)
            answers = ("ipproto", "tcp", "sport", str(port))
            node.run("ip", "rule", "add", "pref", "100", "to", self.head, *answers, "lookup", "main")
            node.run("ip", "rule", "add", "pref", "101", "to", self.head, "lookup", table)

    def let_in(self) -> None:
        """Take back what :meth:`shut_out` did."""
        for node in self.nodes:
            for pref in ("100", "101"):
                node.run("ip", "rule", "del", "pref", pref)

    def cut(self, node_rank: int) -> None:
        """Pull the cable: what is sent is lost, and nobody is told."""
        call("ip", "link", "set", self._cable(node_rank), "down")

    def heal(self, node_rank: int) -> None:
        call("ip", "link", "set", self._cable(node_rank), "up")

    def slow(self, node_rank: int, *, rate: str) -> None:
        """Let no more than ``rate`` through to the node."""
        bucket = ("tbf", "rate", rate, "burst", "4kb", "latency", "200ms")
        try:
            call("tc", "qdisc", "add", "dev", self._cable(node_rank), "root", *bucket)
        except OSError as e:
            lacking(f"tc has no token bucket here: {e}")
        self._slow.add(node_rank)

    def fast(self, node_rank: int) -> None:
        """Take back what :meth:`slow` did."""
        call("tc", "qdisc", "del", "dev", self._cable(node_rank), "root")
        self._slow.discard(node_rank)

    def mend(self) -> None:
        """All cables as new."""
        for n in range(len(self.nodes)):
            self.heal(n)
        for n in list(self._slow):
            self.fast(n)


def _needed_under(place: Path) -> list[str]:
    """What this test run's Python needs of a place that each node has for itself, if it was installed there."""
    needed = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, Path(jdist.__file__).parents[1])}
    return sorted(str(p) for p in needed if p.is_relative_to(place))


class NamespaceLauncher(LocalLauncher):
    """Starts each node's agent in its namespace."""

    bed: Bed

    def command(self, node_rank: int) -> list[str]:
        return self.bed.nodes[node_rank].command(super().command(node_rank))
