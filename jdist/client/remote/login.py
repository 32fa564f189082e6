"""Login: one run of OpenSSH's program, the tunnel through it, and who answers what ssh asks.

A login starts jdist's bootstrap on the host, which reports what it lacks, or becomes ``jdist serve``. From then on, the
standard input and output of ssh carry the tunnel (wire/transport/tunnel). If there is a user to answer, ssh runs a
program (client/remote/askpass) that passes each question to this process, which shows it to the user.
"""

import asyncio
import contextlib
import getpass
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from jdist.client.remote import askpass
from jdist.client.remote.wheel import WHEEL
from jdist.client.threads import bridge
from jdist.core.errors import LaunchError
from jdist.core.settings import SshBootstrapSpec
from jdist.launch.launch_program import reap
from jdist.launch.ssh_command import BootstrapReport, bootstrap_command
from jdist.wire.transport.keys import LOOPBACK
from jdist.wire.transport.tunnel import Tunnel

COMMAND = "JDIST_SSH"  # The variable with the command line of ssh, such as ``ssh -F FILE``.
_OPTIONS = {
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ConnectTimeout": "15",
    "ClearAllForwardings": "yes",  # those of a configuration would meet their own ports in use
    "RemoteCommand": "none",
    "ControlMaster": "no",  # one that is open is used, but this login shall not carry others, which would end with it
}
# What ssh says when one side does not accept the other; behind a program's "Permission denied" is no list of methods.
_DENIALS = ("Permission denied (", "Too many authentication failures", "Host key verification failed")
_ADVICE = (
    "Nothing could be asked here: log in once in a terminal, with a master connection that stays open (ControlMaster, "
    "ControlPersist in ~/.ssh/config): ssh {}"
)
_END = 3.0  # Seconds for ssh to send what it still has.
_LAST_LINES = 3
_COMPLAINTS = 4096  # Bytes.
_GREETING = 64 << 10  # Bytes that a login may print before the report.

Asked = Literal["terminal", "user", "no one"]
Ask = Callable[[str, str], Awaitable[str | None]]
"""Gives the answer to ssh's words, None if there is none. Its second argument is ssh's ``SSH_ASKPASS_PROMPT``."""
Tell = Callable[[str], Awaitable[object]]


class Advice(Struct, frozen=True):
    """What errors tell the user to do, in the words of where the user chooses it."""

    login: str  # Where nothing could be asked.
    install: str = "--install makes an environment with it there"
    name_python: str = "--python PATH, or --python NAME for a conda environment"
    free: str = "detach from its clusters first"  # Where the login has started another Python.

    @classmethod
    def of_shell(cls, host: str) -> "Advice":
        """What errors tell a user who types."""
        return cls(_ADVICE.format(host))


class Login:
    """One run of ssh, and the tunnel through it."""

    def __init__(self, host: str, advice: Advice, tell: Tell, python: str, wheel: bytes):
        """``tell`` gets the lines of an installation. ``python``: see `RemoteHost.choose`; "": the first with jdist."""
        self._host = host
        self._advice = advice
        self._tell = tell
        self._python = python
        self._wheel = wheel  # Sent if jdist is missing there; empty: it is not installed.
        self._tunnel: Tunnel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None  # Until the tunnel has it.
        self._complaints = bytearray()  # The end of what ssh has complained of.
        self._listening: asyncio.Task[None] | None = None
        self._errors: asyncio.BaseTransport | None = None

    @property
    def tunnel(self) -> Tunnel:
        """The tunnel, once the login has begun."""
        assert self._tunnel is not None
        return self._tunnel

    @property
    def said(self) -> str:
        """The last lines of what ssh has complained of, in one."""
        lines = self._complaints.decode(errors="replace").splitlines()
        return " / ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])

    async def begin(self, on_end: "Callable[[Login], object]", asked: Asked | Ask) -> None:
        """Log in and make the tunnel. ``on_end`` is called when it has ended. Raises LaunchError."""
        if sys.platform == "win32":
            raise LaunchError("logins to other hosts need Linux or macOS here; on Windows, run Jupyter in WSL")
        command, bootstrap = bootstrap_command([self._python] if self._python else [sys.executable, "python3"])
        spec = SshBootstrapSpec(
            f"jdist-{secrets.token_hex(8)} ",
            ("serve",),
            installing=self._advice.install,
            naming=self._advice.name_python,
            named=bool(self._python),
            wheel=WHEEL if self._wheel else "",
            wheel_size=len(self._wheel),
        )
        options = [f"-o{name}={value}" for name, value in _OPTIONS.items()]
        if asked == "no one":
            options.append("-oBatchMode=yes")
        words = [*shlex.split(os.environ.get(COMMAND, "ssh")), "-T", *options, "--", self._host, command]
        ask = partial(_ask_user, self._host) if asked == "user" else asked
        async with _AskpassServer(ask) if callable(ask) else contextlib.nullcontext() as questions:
            self._start(words, questions.environment if questions else {}, own_session=asked != "terminal")
            await self._listen()
            rest = await self._read_report(bootstrap + msgspec.json.encode(spec) + b"\n", spec.mark, asked)
        tunnel = self._tunnel = Tunnel(None, lambda: on_end(self))
        own, self._socket = self._socket, None
        await asyncio.get_running_loop().create_connection(lambda: tunnel, sock=own)
        if rest:
            tunnel.data_received(rest)

    def _start(self, words: list[str], environment: dict[str, str], *, own_session: bool) -> None:
        """Start ssh with its input and output at a socket. In the terminal's session, Ctrl-C is for this process."""
        if not own_session:
            words = ["sh", "-c", "trap '' INT; exec \"$@\"", words[0], *words]
        self._socket, ssh_end = socket.socketpair()
        self._socket.setblocking(False)
        end, env = ssh_end.fileno(), {**os.environ, **environment}
        with ssh_end:
            try:
                self._process = subprocess.Popen(
                    words, stdin=end, stdout=end, stderr=subprocess.PIPE, env=env, start_new_session=own_session
                )
            except OSError as e:
                raise LaunchError(f"{words[0]} cannot be run: {e.strerror}") from None
        reap(self._process)

    async def _listen(self) -> None:
        """Keep the end of what ssh complains of."""
        assert self._process is not None
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        self._errors, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stderr
        )

        async def read() -> None:
            while data := await reader.read(_COMPLAINTS):
                self._complaints += data
                del self._complaints[:-_COMPLAINTS]

        self._listening = asyncio.ensure_future(read())

    async def _read_report(self, spec: bytes, mark: str, asked: Asked | Ask) -> bytes:
        """Send the bootstrap and read its report; what has come behind it. Raises LaunchError."""
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        with contextlib.suppress(OSError):  # ssh has ended already, and says why
            await loop.sock_sendall(self._socket, spec)
        read = bytearray()
        while True:
            try:
                piece = await loop.sock_recv(self._socket, 1 << 16)
            except OSError:
                piece = b""
            read += piece
            before, found, after = read.partition(mark.encode())
            while found and b"\n" in after:
                line, _, read = after.partition(b"\n")
                report = msgspec.json.decode(line, type=BootstrapReport)
                if report.error:
                    raise LaunchError(f"{self._host}: {report.error}")
                if report.wants_wheel:
                    await loop.sock_sendall(self._socket, self._wheel)
                elif report.progress:
                    await self._tell(f"{self._host}: {report.progress}")
                else:
                    return bytes(read)
                before, found, after = read.partition(mark.encode())
            if not piece or len(before) > _GREETING:
                if self._listening is not None:
                    await asyncio.wait({self._listening}, timeout=1.0)
                printed = [line.strip() for line in before.decode(errors="replace").splitlines() if line.strip()]
                raise LaunchError(self._explain(self.said or " / ".join(printed[-_LAST_LINES:]), asked))

    def _explain(self, said: str, asked: Asked | Ask) -> str:
        """Why there is no login, in ssh's words, and what to do."""
        text = f"ssh {self._host}: {said.rstrip('.') or 'it ended without a word'}"
        if "Host key verification failed" in said:
            return f"{text}. Look at the key once, in a terminal: ssh {self._host}"
        if is_denied(said) and asked == "no one":
            return f"{text}. {self._advice.login}"
        return f"{text}. Name the Python there: {self._advice.name_python}" if "there is no " in said else text

    def end(self) -> None:
        """End the tunnel in order, and ssh with it, at the latest a moment later; may be called again."""
        if self._listening is not None:
            self._listening.cancel()
        if self._errors is not None:
            self._errors.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        is_open = self._tunnel is not None and not self._tunnel.is_over
        if self._tunnel is not None:
            self._tunnel.close(in_order=True)
        if process is not None and process.poll() is None:
            asyncio.get_running_loop().call_later(_END if is_open else 0.0, _terminate, process)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()


def who_is_asked() -> Asked:
    """Who answers what ssh asks: the terminal, where ssh sees to it; the user of a kernel; or no one."""
    if "ipykernel" in sys.modules:
        return "user"
    return "terminal" if sys.stdin is not None and sys.stdin.isatty() else "no one"


class _AskpassServer:
    """Passes what ssh asks on to who answers, while a login is under way."""

    def __init__(self, ask: Ask):
        self._ask = ask
        self._token = secrets.token_hex(16)
        self._directory = Path()
        self._server: asyncio.Server | None = None
        self.environment: dict[str, str] = {}

    async def __aenter__(self) -> "_AskpassServer":
        self._directory = Path(tempfile.mkdtemp(prefix="jdist-askpass-"))
        program = self._directory / "askpass"
        words = shlex.join([sys.executable, "-I", askpass.__file__])
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o700)
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.environment = {
            "SSH_ASKPASS": str(program),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": os.environ.get("DISPLAY", ":0"),  # releases before 8.4 ask only where there is one
            askpass.VARIABLE: f"{port} {self._token}",
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
            asked: dict[str, Any] = json.loads(await reader.readline())
            if secrets.compare_digest(asked["token"], self._token):
                answer = await self._ask(asked["text"], asked["about"])
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()


async def tell_user(text: str) -> None:
    """Show a line to the user, on the thread that waits if there is one."""

    def show() -> str:
        print(text, file=sys.stderr)
        return text

    if asyncio.get_running_loop() is not bridge().loop or await bridge().ask(show) is None:
        show()


async def _ask_user(host: str, text: str, about: str) -> str | None:
    return await bridge().ask(lambda: _ask(host, text, about))


def is_denied(why: str) -> bool:
    """Whether a login has failed because no password, key or host key was accepted: only the user can change that."""
    return any(each in why for each in _DENIALS)


def is_secret(text: str, about: str) -> bool:
    """Whether what is typed must not be shown: no more than yes or no is asked for otherwise."""
    return not (about == "confirm" or "yes/no" in text)


def _ask(host: str, text: str, about: str) -> str:
    """Ask the user, on the thread that waits. Raises what the front end raises where it takes no input."""
    prompt = text if host in text else f"{host}: {text}"
    if about == "none":  # a key is to be touched
        print(prompt)
        return ""
    return getpass.getpass(prompt + " ") if is_secret(text, about) else input(prompt + " ")
