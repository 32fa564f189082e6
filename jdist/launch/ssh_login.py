"""Logins to hosts by asyncssh, and jdist's own commands there: those of the ssh launcher and of its tunnel keepers.

User, port, key, ProxyJump and the rest come from ``~/.ssh/config`` and ``/etc/ssh/ssh_config``. A host's key must be in
known_hosts; this cannot be turned off. jdist never prompts, so a password or a passphrase cannot be given.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh
import msgspec

from jdist.core.errors import LaunchError
from jdist.core.settings import SshBootstrapSpec
from jdist.launch.ssh_command import BootstrapReport, bootstrap_command

_CONNECT = 20.0  # Seconds to connect to a host, unless the configuration says otherwise.
_LOGIN = 30.0  # Seconds to authenticate.
_ALIVE = 15.0  # Seconds of silence before a keep-alive is sent.
_PARTS = 3  # Of the silence after which a connection is given up.
_CONFIGURATIONS = ("~/.ssh/config", "/etc/ssh/ssh_config")
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_AT_ONCE = 8  # Concurrent logins: sshd (MaxStartups) drops some of more than ten through one jump host.
_REPORT = 60.0  # Seconds for a login shell, Python's start and the import of jdist there.
_LOG_LINES = 3


class SshLogins:
    """Logs in to hosts. ``configuration``: a file to use instead of the user's, as with ``ssh -F``.

    ``places`` bounds the logins that are made at once.
    """

    def __init__(self, configuration: str = ""):
        self._configuration = [configuration] if configuration else _present(_CONFIGURATIONS)
        self.places = asyncio.Semaphore(_AT_ONCE)

    async def log_in(self, host: str, most_silence: float = 0.0) -> asyncssh.SSHClientConnection:
        """Connect to ``host``, written as in ``ssh HOST``. Raises LaunchError with ssh's reason and what to do.

        ``most_silence``: seconds without a byte until the connection is given up, whatever the configuration says.
        """
        user, _, name = host.rpartition("@")
        given: dict[str, Any] = {"config": self._configuration, **({"username": user} if user else {})}
        if most_silence:  # a keep-alive after each part of it but the last
            given |= {"keepalive_interval": most_silence / _PARTS, "keepalive_count_max": _PARTS - 1}
        known = _KnownHosts()
        async with self.places:
            try:
                options = await asyncssh.SSHClientConnectionOptions.construct(host=name, **given)
                given["keepalive_interval"] = options.keepalive_interval or _ALIVE
                known.alias = options.host_key_alias
                known.files = list(options.known_hosts or known.files)
                return await asyncssh.connect(
                    name,
                    known_hosts=known.match,
                    connect_timeout=options.connect_timeout or _CONNECT,
                    login_timeout=_LOGIN,
                    **given,
                )
            except (asyncssh.Error, OSError, ValueError) as e:  # ValueError: configurations and keys that do not parse
                raise LaunchError(_explain(e, host, known)) from e


class _KnownHosts:
    """Looks up the keys that a host may present."""

    def __init__(self) -> None:
        self.files: list[Any] = list(_KNOWN_HOSTS)
        self.alias: str | None = None  # HostKeyAlias of the configuration.
        self.asked_for = ""  # The host as written in known_hosts, once it has been looked up.
        self.has_keys = False

    def match(self, host: str, _address: str, port: int | None) -> Any:
        """Called by asyncssh. As with ssh, a key is looked up by the host's name and not by its address."""
        text = "\n".join(Path(f).read_text(errors="replace") for f in _present(self.files))
        found = asyncssh.match_known_hosts(text.encode(), host, "", port)
        self.asked_for = host if port is None or host == self.alias else f"[{host}]:{port}"
        self.has_keys = any(found[:2])
        return found


def _present(paths: Any) -> list[str]:
    return [str(p) for p in (Path(p).expanduser() for p in paths) if p.is_file()]


def _explain(error: Exception, host: str, known: _KnownHosts) -> str:
    """Why there is no connection, in ssh's words, and what to do."""
    reason = str(error).rstrip(".") or type(error).__name__
    match error:
        case asyncssh.PermissionDenied():
            return (
                f"{reason}: it takes none of your keys, and jdist never types a password. Once, in a terminal: "
                f"ssh-copy-id {host} (a key with a passphrase also needs: ssh-add)"
            )
        case asyncssh.HostKeyNotVerifiable() if not known.asked_for:
            return reason  # of a jump host's
        case asyncssh.HostKeyNotVerifiable() if known.has_keys:
            return (
                f"{reason}: it is not the key in known_hosts. Either the host was installed anew or something else "
                f"answers in its place; if you know why, ssh-keygen -R '{known.asked_for}' forgets the old key"
            )
        case asyncssh.HostKeyNotVerifiable():
            return f"{reason}: it is not in known_hosts yet. Once, in a terminal, look at it and accept it: ssh {host}"
        case TimeoutError():
            return f"no answer; is it up, and is its port open from here? ssh {host} must work"
        case _:
            return f"{reason}; ssh {host} must work without being asked for anything"


async def start_there(
    connection: asyncssh.SSHClientConnection, host: str, pythons: Sequence[str], spec: SshBootstrapSpec
) -> tuple[asyncssh.SSHClientProcess[bytes], BootstrapReport]:
    """Start a command of jdist's, by the first of ``pythons`` that is there. Raises LaunchError, asyncssh.Error."""
    command, bootstrap = bootstrap_command(pythons)
    process = await connection.create_process(command, encoding=None)
    try:
        async with asyncio.timeout(_REPORT):
            with contextlib.suppress(OSError):  # it ended already, and says why
                process.stdin.write(bootstrap + msgspec.json.encode(spec) + b"\n")
                await process.stdin.drain()
            report = await _read_report(process, spec.mark.encode())
    except TimeoutError:
        raise LaunchError(f"Python did not start within {_REPORT:.0f} s; try ssh {host} python3") from None
    if report.error:
        raise LaunchError(report.error)
    return process, report


async def _read_report(process: asyncssh.SSHClientProcess[bytes], mark: bytes) -> BootstrapReport:
    """Read the line with the mark, skipping a login's output. Raises LaunchError with the output if there is none."""
    async for line in process.stdout:
        if line.startswith(mark):
            return msgspec.json.decode(line[len(mark) :], type=BootstrapReport)
    done: Any = await process.wait()
    said = " / ".join((done.stderr or b"").decode(errors="replace").strip().splitlines()[-_LOG_LINES:])
    raise LaunchError(f"Python could not be started there: {said or f'exit code {done.exit_status}'}")
