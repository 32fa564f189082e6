"""A real JupyterHub for the tests, with its proxy, and notebooks on its servers as their users have them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import websocket

from support.attempts import OTHER
from support.hub.examples import example
from support.hub.second_user import as_second_user
from support.lab.browser import Browser
from support.lab.browsing import EXTENSION
from support.waits import eventually

HERE = Path(__file__).parent
USERS = ("alice", "bob", "carol")
PROXY = HERE / "node_modules" / ".bin" / "configurable-http-proxy"
UP_WITHIN = 180.0
CELL = 150.0
SILENCE = 15.0
"""Seconds after which a kernel is connected to again: a page that does not answer the server's pings is let go of, and
ours does so only while it waits."""


class Hub:
    """Started by ``up``; ``token`` may do anything."""

    def __init__(self, home: Path):
        self.home = home
        self.token = secrets.token_hex(16)
        self._ports = _free_ports(3)
        self.url = f"http://127.0.0.1:{self._ports[0]}"
        self.culler_token = secrets.token_hex(16)
        self.as_bob = as_second_user(home / "tools", OTHER) if _may_mount() else []
        """Makes bob's server a Unix user of his own; empty: all are one."""
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        self._furnish()
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HUB_HOME": str(self.home),
            "HUB_PORTS": " ".join(map(str, self._ports)),
            "HUB_TOKEN": self.token,
            "HUB_PROXY": str(PROXY),
            "HUB_USERS": " ".join(USERS),
            "HUB_AS_BOB": json.dumps(self.as_bob),
            "HUB_CULLER_TOKEN": self.culler_token,
            "HUB_ETC": str(HERE.parents[2] / "etc"),  # what the wheel puts beside Python, here from the tree
        }
        command = [sys.executable, "-m", "jupyterhub", "-f", str(HERE / "jupyterhub_config.py")]
        with open(self.home / "hub.log", "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.home,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert eventually(self._answers, UP_WITHIN), (self.home / "hub.log").read_text()[-3000:]

    def _furnish(self) -> None:
        """Homes, JupyterLab's extension, the documentation's configurations. One user tries to have one of his own."""
        self.home.chmod(0o711)
        for user in USERS:
            (self.home / user).mkdir(parents=True)
        (self.home / "shown_config.py").write_text(example("jupyterhub_config.py"))
        (self.home / "etc").mkdir()
        (self.home / "etc" / "jupyter_server_config.py").write_text(example("jupyter_server_config.py"))
        own = self.home / "bob" / ".jupyter"
        own.mkdir()
        (own / "jupyter_server_config.py").write_text("c.Jdist.max_ranks = 10**6\nc.Jdist.allowed_launchers = []\n")
        (self.home / "tools").mkdir()
        (self.home / "extensions").mkdir()
        (self.home / "extensions" / "jdist").symlink_to(EXTENSION)
        if self.as_bob:
            for path in (own / "jupyter_server_config.py", own, own.parent):
                os.chown(path, OTHER, OTHER)

    def _answers(self) -> bool:
        """Through the proxy."""
        with contextlib.suppress(OSError):
            return "version" in self.ask("GET", "/hub/api/")[1]
        return False

    def down(self) -> list[str]:
        """Ends it with all of its servers; what was left of them, which should be nothing."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)
        eventually(lambda: not self.processes(), 20.0)
        return list(self.processes().values())

    def processes(self, containing: str = "", users: Sequence[str] = USERS) -> dict[int, str]:
        """Command lines of what runs in a home of the Hub's users."""
        marks = [f"HOME={self.home}/{user}".encode() for user in users]
        found = {}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if any(m in environ for m in marks) and containing in line:
                    found[pid] = line
        return found

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        """Status and what was said."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"token {token or self.token}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, _read(answer.read())
        except urllib.error.HTTPError as e:
            with e:
                return e.code, _read(e.read())

    def begin(self, user: str) -> None:
        """Have the user's own server started, as after a login; the Hub answers before it is up."""
        self.ask("POST", f"/hub/api/users/{user}")
        self.ask("POST", f"/hub/api/users/{user}/server")

    def serve(self, user: str) -> Server:
        """The user's own server, once it is up."""
        assert eventually(lambda: self.servers(user).get("", {}).get("ready"), UP_WITHIN), self.servers(user)
        token = self.ask("POST", f"/hub/api/users/{user}/tokens", {"note": "browser"})[1]["token"]
        return Server(self, user, token)

    def servers(self, user: str) -> dict[str, Any]:
        """All that the Hub knows of, stopped ones too."""
        return self.ask("GET", f"/hub/api/users/{user}?include_stopped_servers=1")[1]["servers"]

    def stop_server(self, user: str, name: str) -> None:
        """As with the button on the Hub's page."""
        self.ask("DELETE", f"/hub/api/users/{user}/" + (f"servers/{name}" if name else "server"))


class Server:
    """A user's server, spoken to with the user's token."""

    def __init__(self, hub: Hub, user: str, token: str):
        self.hub = hub
        self.token = token
        self.path = f"/user/{user}/"
        self._kernels: list[Kernel] = []

    @property
    def browser(self) -> Browser:
        """With the user's token."""
        return Browser(self.hub.url + self.path, self.token)

    def notebook(self) -> Kernel:
        """A fresh kernel that has loaded jdist."""
        number = self.hub.ask("POST", f"{self.path}api/kernels", {}, self.token)[1]["id"]
        kernel = Kernel(self, number)
        self._kernels.append(kernel)
        kernel.run("%load_ext jdist")
        return kernel

    def close(self) -> None:
        for kernel in self._kernels:
            kernel.close()


class Kernel:
    """Runs cells, as a front end does."""

    def __init__(self, server: Server, number: str):
        self._server = server
        self._number = number
        self._connect()

    def _connect(self) -> None:
        server, self._used = self._server, time.monotonic()
        self._session = uuid.uuid4().hex
        url = server.hub.url.replace("http", "ws", 1) + f"{server.path}api/kernels/{self._number}/channels"
        self._socket = websocket.create_connection(
            f"{url}?session_id={self._session}", timeout=CELL, header=[f"Authorization: token {server.token}"]
        )

    def run(self, code: str) -> str:
        """Everything that was shown, errors included."""
        if time.monotonic() - self._used > SILENCE:
            self.close()
            self._connect()
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "username": "", "session": self._session}
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = {"channel": "shell", "header": {**header, "version": "5.3", "date": ""}, "content": content}
        self._socket.send(json.dumps({**message, "parent_header": {}, "metadata": {}, "buffers": []}))
        shown, open_ends = [], {"reply", "idle"}
        while open_ends:
            heard = json.loads(self._socket.recv())
            if heard["parent_header"].get("msg_id") != number:
                continue
            said = heard["content"]
            match heard["msg_type"]:
                case "stream":
                    shown.append(said["text"])
                case "display_data" | "update_display_data" | "execute_result":
                    shown.append(said["data"].get("text/plain", ""))
                case "error":
                    shown.append(f"{said['ename']}: {said['evalue']}")
                case "execute_reply":
                    open_ends.discard("reply")
                case "status" if said["execution_state"] == "idle":
                    open_ends.discard("idle")
        self._used = time.monotonic()
        return "\n".join(shown)

    def restart(self) -> None:
        """As with the notebook's button; jdist is loaded again."""
        self.close()
        path = f"{self._server.path}api/kernels/{self._number}/restart"
        status, said = self._server.hub.ask("POST", path, {}, self._server.token)
        assert status == 200, said
        self._connect()
        self.run("%load_ext jdist")

    def close(self) -> None:
        self._socket.close()


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _may_mount() -> bool:
    """Whether a program here can have a view of the file system of its own."""
    unshared = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(unshared, capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        return False
