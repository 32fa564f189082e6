"""Rays: a real Ray cluster on the bed. The head, with no CPU, is this machine; each node of the bed is one of Ray's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.hosts.namespaces import Bed, Node
from support.waits import eventually

NCPU = 4
# Of a node of its own that is late Ray asks again without a pause, and gives up after 30 s whatever its settings say.
# It does not tell raylet one of the ports that it was told, which raylet then gives a helper 15 s to find out, or ends.
_SCRIPT = """
import sys, time
from ray._private import services
from ray.scripts.scripts import main

until, port = time.monotonic() + float(sys.argv.pop(1)), sys.argv[sys.argv.index("--dashboard-agent-listen-port") + 1]
raylets = []

def start(command, process_type, *args, _start=services.start_ray_process, **options):
    if process_type != "raylet":
        return _start(command, process_type, *args, **options)
    raylets.append(_start([*command, f"--dashboard_agent_listen_port={port}"], process_type, *args, **options))
    return raylets[-1]

def patient(*args, _ask=services.get_node):
    while True:
        try:
            return _ask(*args)
        except RuntimeError:
            if time.monotonic() > until or any(each.process.poll() is not None for each in raylets):
                raise SystemExit("raylet has ended, or is late")
        time.sleep(0.5)

services.start_ray_process, services.get_node = start, patient
main()
"""
_TRIES = 3
_UP = 180.0
"""Seconds: each node of Ray's is half a dozen Python programs."""
_RAY = (sys.executable, "-c", _SCRIPT, str(_UP))
_MEMORY = str(80 * 2**20)
# Ports that are said need not be found out, for which raylet gives its helpers 15 s.
_PORTS = ("metrics-export", "dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent")
_ENV = {
    "RAY_AUTH_MODE": "disabled",  # a token in the user's home would be asked for by the head alone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_gcs_server_port_wait_time_s": f"{_UP:.0f}",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    # A raylet that is gone refuses at once; one of a busy machine is late, and Ray would take it for dead.
    "RAY_health_check_timeout_ms": "20000",
}
_HELD = """
import sys, logging, ray
from ray._private.state import actors
from ray.util import placement_group_table
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
alive = [a for a in actors().values() if a["State"] != "DEAD"]
print(*(a["ActorClassName"] + "@" * (a["Address"]["IPAddress"] == sys.argv[1].partition(":")[0]) for a in alive))
print(*(p["name"] for p in placement_group_table().values() if p["state"] != "REMOVED"))
"""


class Rays:
    """Ray's nodes; started by :meth:`up`, each ended by its own process's number."""

    def __init__(self, bed: Bed):
        self._bed = bed
        self._directory = bed.directory / "ray"
        # Under /tmp, which each node has for itself: Ray's nodes would take each other's sockets for their own.
        self._session = Path("/tmp") / f"{bed.head_name}-ray"
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    def up(self, nnodes: int) -> None:
        self._directory.mkdir()
        port = _free_ports(1)[0]
        self.address = f"{self._bed.head}:{port}"
        self._start_head(port)
        self._wait("head", lambda: self._start_head(port))
        for node in self._bed.nodes[:nnodes]:
            self.start(node)
        for node in self._bed.nodes[:nnodes]:
            self.wait(node)

    def wait(self, node: Node) -> None:
        """Until it is up."""
        self._wait(node.name, lambda: self.start(node))

    def _wait(self, name: str, start: Callable[[], None]) -> None:
        """A node of Ray's that did not come up, as on a busy machine, has ended: it is started again."""
        for _ in range(_TRIES):
            is_decided = eventually(lambda: self._is_up(name) or self._started[name].poll() is not None, _UP)
            assert is_decided, f"neither up nor ended after {_UP:.0f} s: {self.log(name)}"
            if self._is_up(name):
                return
            start()
        raise AssertionError(self.log(name))

    def _start_head(self, port: int) -> None:
        self._start(
            "head",
            [],
            self._bed.head,
            ["--head", "--port", str(port), "--num-cpus", "0", "--include-dashboard", "false"],
            ["--temp-dir", str(self._session)],
        )

    def start(self, node: Node) -> None:
        where = ["--address", self.address, "--num-cpus", str(NCPU)]
        self._start(node.name, node.command([]), node.address, where, [])

    def _start(self, name: str, within: list[str], address: str, where: list[str], more: list[str]) -> None:
        ports = [w for n, p in zip(_PORTS, _free_ports(len(_PORTS)), strict=True) for w in (f"--{n}-port", str(p))]
        common = ["--block", "--disable-usage-stats", "--node-ip-address", address, "--object-store-memory", _MEMORY]
        with open(self._directory / f"{name}.out", "wb") as out:
            self._started[name] = subprocess.Popen(
                [*within, *_RAY, "start", *common, *where, *more, *ports],
                env={**{k: v for k, v in os.environ.items() if k != "JUPYTER_RUNTIME_DIR"}, **_ENV},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_up(self, name: str) -> bool:
        return self._started[name].poll() is None and "Ray runtime started" in self.log(name)

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.out").read_text(errors="replace")

    def kill(self, node: Node) -> None:
        """All of Ray's processes on a node, at once, as a power cut would. Other daemons there are other tests'."""
        started = self._started.pop(node.name)
        for pid in _in_network_of(node):
            if _is_rays(pid) and "jdist" not in " ".join(_command(pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        started.wait()

    def held(self) -> list[str]:
        """Actors, with an @ if they are on the head, and placement groups that live."""
        done = subprocess.run([sys.executable, "-c", _HELD, self.address], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def down(self) -> None:
        for started in reversed(self._started.values()):
            started.terminate()
        for started in self._started.values():
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        for path in (self._directory, self._session):
            shutil.rmtree(path, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []


def _is_rays(pid: int) -> bool:
    """Whether Ray started it, or it is Ray itself: it has the settings of :data:`_ENV`."""
    with contextlib.suppress(OSError):
        return next(iter(_ENV)).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _in_network_of(node: Node) -> list[int]:
    own = os.readlink(f"/proc/{node.held.pid}/ns/net")
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/net") == own:
                found.append(pid)
    return found
