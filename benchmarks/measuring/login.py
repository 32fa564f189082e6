"""A login on this machine over a wire: sshd with keys of its own, which `ssh HOST` reaches through the wire."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from measuring.slowly import WireProcess
from measuring.table import cannot_run

HOST = "over-there"
_SSHD = "/usr/sbin/sshd"


class Login:
    """``with`` runs the daemon; the environment's JDIST_SSH is the command that logs in."""

    def __init__(self, delay: float = 0.0):
        self._folder = Path(tempfile.mkdtemp(prefix="jdist-bench-"))
        self._daemon: subprocess.Popen[bytes] | None = None
        if not Path(_SSHD).exists() or shutil.which("ssh") is None:
            cannot_run("it needs sshd and ssh (openssh-server, openssh-client)")
        for name in ("hostkey", "id"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(command, check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        self.wire = WireProcess(self._port, delay)
        self.command = ["ssh", "-F", str(self._configure())]

    def _configure(self) -> Path:
        folder, public = self._folder, (self._folder / "hostkey.pub").read_text().split()[:2]
        (folder / "known_hosts").write_text(f"{HOST} {' '.join(public)}\n")
        (folder / "runtime").mkdir(mode=0o700)
        (folder / "sshd_config").write_text(
            f"Port {self._port}\nListenAddress 127.0.0.1\nHostKey {folder}/hostkey\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/id.pub\nStrictModes no\nPermitRootLogin prohibit-password\n"
            f"AllowTcpForwarding no\nSetEnv JUPYTER_RUNTIME_DIR={folder}/runtime\n"
        )
        configuration = folder / "config"
        configuration.write_text(
            f"Host {HOST}\n  HostName 127.0.0.1\n  Port {self.wire.port}\n  HostKeyAlias {HOST}\n"
            f"  IdentityFile {folder}/id\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
        )
        return configuration

    def __enter__(self) -> Self:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it insists to be
        words = [_SSHD, "-D", "-e", "-f", str(self._folder / "sshd_config")]
        self._daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.environ["JDIST_SSH"] = shlex.join(self.command)
        deadline = time.monotonic() + 20
        while subprocess.run([*self.command, HOST, "true"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                cannot_run("sshd takes no login of this user")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(10)
        self.wire.end()
        shutil.rmtree(self._folder, ignore_errors=True)
