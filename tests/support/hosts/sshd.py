"""Sshd: a real one on each node, which takes one key and no password, and a user's ``~/.ssh`` that knows them.

Hosts, as the user calls them: ``a``, ``b``, ``c`` are the nodes, and ``through`` is c by way of a. c greets whoever
logs in, on standard output, whatever for. b forwards nothing, and ``locked`` is b by a key whose passphrase is
`PASSPHRASE`. ``stranger`` has no key that b takes; ``changed`` is b with another host key in known_hosts, ``unseen``
with none; at ``nowhere`` is nobody. A login from c is ended when it has not answered for a few seconds. A login has
folders of its host's own, for connection files and for environments with jdist.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from support.hosts.namespaces import Bed, Node
from support.waits import eventually

PORT = 2222
NAMES = ("a", "b", "c")
PASSPHRASE = "open sesame"
_SSHD = """
Port {port}
ListenAddress {address}
HostKey {directory}/hostkey
PidFile none
AuthorizedKeysFile {keys}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
StrictModes no
UseDNS no
SetEnv JUPYTER_RUNTIME_DIR={directory}/runtime TMPDIR={directory}/tmp XDG_DATA_HOME={directory}/share SLURM_CONF={slurm}
"""
_IMPATIENT = """
Match Address {address}
  ClientAliveInterval 1
  ClientAliveCountMax 2
"""
_FORBIDDING = """
AllowTcpForwarding no
AllowStreamLocalForwarding no
PermitTunnel no
"""
_GREETING = """
ForceCommand echo "Welcome to"; printf host; eval "$SSH_ORIGINAL_COMMAND"
"""
_CLIENT = """
Host stranger
  IdentityFile {ssh}/stranger
Host changed
  HostKeyAlias changed
Host unseen
  HostKeyAlias unseen
Host through
  ProxyJump a
Host locked
  IdentityFile {ssh}/locked
Host * !stranger !locked
  IdentityFile {ssh}/id
Host *
  User root
  Port {port}
  IdentitiesOnly yes
  UserKnownHostsFile {ssh}/known_hosts
"""


class Sshd:
    """The daemons, and the home directory of their user."""

    def __init__(self, bed: Bed):
        self.home = bed.directory / "home"
        self._nodes = bed.nodes
        self._ssh = self.home / ".ssh"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def up(self) -> None:
        self._ssh.mkdir(parents=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # where it insists to be
        for name, passphrase in (("id", ""), ("stranger", ""), ("locked", PASSPHRASE)):
            self._make_key(self._ssh / name, passphrase)
        keys = [(self._ssh / f"{name}.pub").read_text() for name in ("id", "locked")]
        (self._ssh / "authorized_keys").write_text("".join(keys))
        known = [f"changed {_public(self._ssh / 'stranger.pub')}"]
        for node in self._nodes:
            self._make_key(node.directory / "hostkey")
            known.append(f"[{node.address}]:{PORT} {_public(node.directory / 'hostkey.pub')}")
            self._daemons.append(self._start(node))
        (self._ssh / "known_hosts").write_text("\n".join(known) + "\n")
        (self._ssh / "config").write_text(self._configuration() + _CLIENT.format(ssh=self._ssh, port=PORT))

    def _configuration(self) -> str:
        a, b, c = (n.address for n in self._nodes)
        nowhere = b.rpartition(".")[0] + ".200"
        of = {"a": a, "b": b, "c": c, "through": c, "stranger": b, "changed": b, "unseen": b}
        of |= {"nowhere": nowhere, "locked": b}
        return "".join(f"Host {name}\n  HostName {address}\n" for name, address in of.items())

    def _start(self, node: Node) -> subprocess.Popen[bytes]:
        places = {"port": PORT, "address": node.address, "directory": node.directory}
        places["slurm"] = node.directory.parent / "slurm" / "slurm.conf"  # which slurmd.py writes
        settings = _SSHD.format(**places, keys=self._ssh / "authorized_keys")
        name = NAMES[self._nodes.index(node)]
        own = {"b": _FORBIDDING, "c": _GREETING}.get(name, "")
        impatient = _IMPATIENT.format(address=self._nodes[-1].address)
        (node.directory / "sshd_config").write_text(settings + own + impatient)
        command = node.command(["/usr/sbin/sshd", "-D", "-e", "-f", str(node.directory / "sshd_config")])
        with open(node.directory / "sshd.log", "wb") as log:
            daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            )
        if not eventually(lambda: b"Server listening" in (node.directory / "sshd.log").read_bytes(), 20):
            raise OSError(f"sshd on {node.name}: {(node.directory / 'sshd.log').read_text()}")
        return daemon

    @staticmethod
    def _make_key(path: Path, passphrase: str = "") -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)

    @property
    def command(self) -> str:
        """The command line of the OpenSSH client, which does not look for its files at ``HOME``."""
        return f"ssh -F {self._ssh / 'config'}"

    def runtime(self, host: str) -> Path:
        """The folder for connection files of logins on a node."""
        return self._nodes[NAMES.index(host)].directory / "runtime"

    def sessions(self) -> list[str]:
        """Logins that are still there."""
        children = [c for d in self._daemons for c in psutil.Process(d.pid).children()]
        return [str(c) for c in children]

    def down(self) -> None:
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(20)


def _public(path: Path) -> str:
    return " ".join(path.read_text().split()[:2])
