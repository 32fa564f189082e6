"""Nodes as named servers of the same JupyterHub user: processes, batch jobs, pods or whatever the Hub's spawner starts.

The servers are started, followed and removed through the Hub's REST API. In each, a kernel starts the agent and is shut
down. The agent ends with the cluster or with its server.

All used here is in the API (https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html) of 2.0. Code is sent
over a kernel's websocket (https://jupyter-server.readthedocs.io/en/latest/developers/websocket-protocols.html), so
nothing needs to be installed in the server, and the code is in no command line, environment, log or history.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import Struct
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketError, websocket_connect

from jdist.core.errors import LaunchError, UsageError
from jdist.core.quantities import ArgumentParser
from jdist.core.settings import Settings
from jdist.launch.base import LauncherForm, LauncherOption, LaunchPlan
from jdist.launch.hosts import NodeLaunch, NodeLauncher

_ANSWER = 60.0  # Seconds for a response; the Hub itself waits 10 s for a quick spawner before it responds.
_SILENCE = 60.0  # Seconds without a byte of the progress stream, in which the Hub sends an empty line every 8 s.
_GONE_WITHIN = 90.0  # Seconds for a spawner to stop a server.
_RUN_WITHIN = 180.0  # Seconds for a kernel to start and to run code.
_LOOK = 0.5  # Seconds between two polls whether a server is gone; the Hub sends no notification.
_MAY_START = "servers!user"
_MAY_USE = "access:servers!user"
_NEEDED = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_USER")
_TOUCH = 300.0  # Seconds between activity reports: many Hubs stop servers that were idle for an hour.
_AGENT = """\
import os
os.environ.update({env!r})
from jdist.client.lifecycle.start import join_here
join_here({line!r}, node_rank={node_rank}, fork={fork})
"""


class HubAccess(Struct, frozen=True):
    """Address of the Hub, and the user and token to use there."""

    api: str  # For example `http://127.0.0.1:8081/hub/api`.
    user: str
    token: str
    public: str = ""  # Scheme and host at which browsers reach users' servers; empty: as the Hub reports.


class ServerAddress(Struct, frozen=True):
    """Address of a server behind the Hub's proxy."""

    url: str
    token: str

    def at(self, path: str, scheme: str = "") -> str:
        """URL of a path below the server; ``scheme`` "ws" for its websocket."""
        base = self.url.rstrip("/")
        return (base.replace("http", scheme, 1) if scheme else base) + "/" + path


async def fetch(url: str, token: str, method: str = "GET", body: Any = None, **options: Any) -> HTTPResponse:
    """Send one request. Raises LaunchError if there is no response; the caller checks the status."""
    client = AsyncHTTPClient(force_instance=True)
    try:
        return await client.fetch(
            url,
            raise_error=False,
            method=method,
            headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
            body=None if body is None else json.dumps(body),
            allow_nonstandard_methods=True,  # a DELETE with a body, a POST without
            follow_redirects=False,  # the token is for this address alone
            **{"request_timeout": _ANSWER, **options},
        )
    except (OSError, HTTPClientError, StreamClosedError, ValueError) as e:
        raise LaunchError(f"nobody answers at {_origin(url)}: {str(e) or type(e).__name__}") from None
    finally:
        client.close()


def check(response: HTTPResponse, doing: str, scope: str = _MAY_START) -> HTTPResponse:
    """The response if it is a success. Raises LaunchError with the Hub's reason and who can do what about it."""
    if response.code < 300:
        return response
    said = _reason(response)
    if _is_forbidden(response):
        raise LaunchError(f"the Hub does not allow {doing} ({response.code}: {said}); {_ask_for(scope)}")
    if response.code in (301, 302, 303, 307, 308):
        raise LaunchError(
            f"{doing}: {_origin(response.request.url)} sends on to {response.headers.get('Location', '?')}; "
            "name the address at which your servers are found: -- --url https://HUB"
        )
    if "amed servers are not enabled" in said:
        said += " (the Hub's admin: c.JupyterHub.allow_named_servers = True)"
    elif "maximum of" in said:
        said += " (c.JupyterHub.named_server_limit_per_user; stop some on the Hub's page /hub/home)"
    raise LaunchError(f"{doing}: the Hub answers {response.code}: {said}")


def read(response: HTTPResponse) -> dict[str, Any]:
    """The JSON object in a response. Raises LaunchError if it is something else, such as an HTML page."""
    with contextlib.suppress(ValueError):
        said = json.loads(response.body)
        if isinstance(said, dict):
            return said
    raise LaunchError(f"what answers at {_origin(response.request.url)} is no JupyterHub: -- --url https://HUB")


class HubServers:
    """The named servers of one user."""

    def __init__(self, reach: HubAccess):
        self._access = reach
        self._home = f"users/{quote(reach.user, safe='@~')}"

    async def running(self, *, stopped: bool = False) -> dict[str, dict[str, Any]]:
        """The Hub's model of each named server that is not stopped (with ``stopped``: of all). Raises LaunchError."""
        query = "?include_stopped_servers=1" if stopped else ""
        answer = await self._ask("GET", f"{self._home}{query}")
        servers = read(check(answer, "to list your servers", "read:servers!user")).get("servers")
        if servers is None:
            raise LaunchError(f"the Hub does not list your servers; {_ask_for('read:servers!user')}")
        return {name: model for name, model in servers.items() if name}

    async def spawn(self, name: str, options: dict[str, Any], tell: Callable[[str], None]) -> ServerAddress:
        """Start a named server and wait until it is ready. Raises LaunchError with the spawner's reason."""
        while True:
            answer = await self._ask("POST", self._path(name), options)
            delay = answer.headers.get("Retry-After", "")
            if answer.code != 429 or not delay.isdecimal():
                break
            tell(f"the Hub starts many servers right now; asked again in {delay} s")
            await asyncio.sleep(float(delay))
        if answer.code < 500:  # else its spawner has failed at once, and the reason stands in the progress
            check(answer, f"to start server {name}")
        said = ""
        while not (progress := await self._progress(name, tell)).get("ready"):  # the spawner decides how long
            said = progress.get("message") or said
            model = None if progress.get("failed") else (await self.running()).get(name)
            if model is None:
                raise LaunchError(f"the Hub could not start server {name}: {said or 'it says no more than that'}")
            if model["ready"]:
                break
            await asyncio.sleep(_LOOK)
        return await self.address(name)

    async def _progress(self, name: str, tell: Callable[[str], None]) -> dict[str, Any]:
        """Follow the progress stream, which may break, and return its last event."""
        buffer, last = bytearray(), dict[str, Any]()
        loop = asyncio.get_running_loop()

        def take(chunk: bytes) -> None:
            silence.reschedule(loop.time() + _SILENCE)
            buffer.extend(chunk)
            *lines, rest = bytes(buffer).split(b"\n")
            buffer[:] = rest
            for line in lines:
                if line.startswith(b"data:"):
                    last.update(json.loads(line[5:]))
                    tell(str(last.get("message", "")))

        url = f"{self._access.api}/{self._path(name)}/progress"
        try:
            async with asyncio.timeout(_SILENCE) as silence:
                answer = await fetch(url, self._access.token, request_timeout=0, streaming_callback=take)
            if answer.code in (401, 403, 404):
                check(answer, f"to follow the start of server {name}", "read:servers!user")
        except TimeoutError:
            tell("the Hub has fallen silent; asking again")
        return last

    async def address(self, name: str) -> ServerAddress:
        """Address of a server that is ready. Raises LaunchError."""
        model = (await self.running()).get(name)
        if model is None or not model["ready"]:
            raise LaunchError(f"server {name} does not run")
        full = str(model.get("full_url") or model["url"])
        if self._access.public:
            full = self._access.public.rstrip("/") + urlsplit(full).path
        if not full.startswith("http"):
            raise LaunchError(
                f"server {name} runs, and the Hub does not say at which public address: write -- --url https://HUB "
                "(the Hub's admin: c.JupyterHub.public_url = 'https://HUB')"
            )
        return ServerAddress(full, self._access.token)

    async def remove(self, name: str) -> None:
        """Stop and remove a server, or cancel its start; does nothing if there is none. Raises LaunchError."""
        try:
            async with asyncio.timeout(_GONE_WITHIN):
                while True:
                    answer = await self._ask("DELETE", self._path(name), {"remove": True})
                    if answer.code == 404 and not _is_forbidden(answer):
                        return
                    if answer.code < 500:  # else it is at odds with itself, as while a start is being given up
                        check(answer, f"to stop server {name}")
                    if name not in await self.running(stopped=True):
                        return
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            raise LaunchError(
                f"server {name} was not stopped within {_GONE_WITHIN:.0f} s; the Hub's page /hub/home shows it"
            ) from None

    async def touch(self, name: str) -> bool:
        """Report activity of a server, for a Hub that stops idle ones; False if the server is gone."""
        address = await self.address(name)
        return (await fetch(address.at("api/kernels"), address.token)).code == 200

    def _path(self, name: str) -> str:
        return f"{self._home}/servers/{quote(name, safe='')}"

    async def _ask(self, method: str, path: str, body: Any = None) -> HTTPResponse:
        return await fetch(f"{self._access.api}/{path}", self._access.token, method, body)


def _reason(response: HTTPResponse) -> str:
    """The reason in an error response of a Hub or a server: a JSON message, or an HTML page."""
    said = None
    with contextlib.suppress(ValueError, AttributeError):
        said = json.loads(response.body).get("message")
    return str(said or response.reason)


def _ask_for(scope: str) -> str:
    """What to do about a missing scope of the token, and who can do it."""
    scopes = f'["users:activity!user", "access:servers!server", "{_MAY_START}", "{_MAY_USE}"]'
    return (
        f"the token lacks the scope {scope}. The Hub's admin can give it to every server: c.Spawner.server_token_scopes"
        f" = {scopes}; or make a token of your own on the Hub's page /hub/token, keep it in a file of mode 0600, and "
        "start with -- --token-file FILE"
    )


def _is_forbidden(response: HTTPResponse) -> bool:
    """Whether access was denied. The Hub reports 404 for a resource of another user."""
    return response.code in (401, 403) or (response.code == 404 and "No access" in _reason(response))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def run_code(server: ServerAddress, code: str, kernel: str = "") -> None:
    """Run ``code`` on a new kernel of ``server``; ``kernel`` "" is the default kernel. Raises LaunchError."""
    answer = await fetch(server.at("api/kernels"), server.token, "POST", {"name": kernel} if kernel else {})
    made = read(check(answer, "to start a kernel on it", _MAY_USE))
    try:
        async with asyncio.timeout(_RUN_WITHIN):
            reply = await _execute(server, made["id"], code)
    except TimeoutError:
        raise LaunchError(f"its kernel {made['name']} did not answer within {_RUN_WITHIN:.0f} s") from None
    except (OSError, HTTPClientError, StreamClosedError, WebSocketError, WebSocketClosedError) as e:
        reason = str(e) or type(e).__name__
        raise LaunchError(f"its kernel cannot be spoken to through the Hub's proxy: {reason}") from None
    finally:
        with contextlib.suppress(LaunchError):  # the server ends, and its kernels with it
            await asyncio.shield(fetch(server.at(f"api/kernels/{made['id']}"), server.token, "DELETE"))
    if reply["status"] != "ok":
        kind, said = reply.get("ename", reply["status"]), str(reply.get("evalue", ""))
        if kind == "ModuleNotFoundError" and "'jdist'" in said:
            said = f"jdist is not installed for the kernel {made['name']} there; another one: -- --kernel NAME"
            raise LaunchError(said)
        raise LaunchError(said if kind == "LaunchError" else f"{kind}: {said}")


async def _execute(server: ServerAddress, kernel_id: str, code: str) -> dict[str, Any]:
    """Send the request and return the content of the reply."""
    number, session = uuid.uuid4().hex, uuid.uuid4().hex
    whose = {"username": "jdist", "session": session, "version": "5.3", "date": datetime.now(UTC).isoformat()}
    request = {
        "channel": "shell",
        "header": {"msg_id": number, "msg_type": "execute_request", **whose},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": True, "store_history": False, "user_expressions": {}, "allow_stdin": False},
        "buffers": [],
    }
    url = server.at(f"api/kernels/{kernel_id}/channels?session_id={session}", "ws")
    connection = await websocket_connect(HTTPRequest(url, headers={"Authorization": f"token {server.token}"}))
    with contextlib.closing(connection):
        await connection.write_message(json.dumps(request))
        while (message := await connection.read_message()) is not None:
            heard = json.loads(message)
            if heard["msg_type"] == "execute_reply" and heard["parent_header"].get("msg_id") == number:
                return dict(heard["content"])
    raise LaunchError("its kernel's connection ended before it answered")


class HubOptions(Struct, frozen=True):
    """Options after ``--``."""

    choices: dict[str, Any] = {}  # Options for the Hub's spawner, as its own options page would send them.
    kernel: str = ""  # Kernel whose Python runs the agent; empty: the servers' default.
    url: str = ""
    token_file: str = ""


class HubNode(NodeLaunch):
    """A node on its server."""

    def __init__(self, cluster: str, rank: int):
        super().__init__(server_name(cluster, rank), "waiting for the Hub")
        self.rank = rank
        self.is_mine = False  # Whether this launcher requested the server.


class HubLauncher(NodeLauncher[HubNode]):
    """Requests all servers at once."""

    scheme = "hub"
    form = LauncherForm(
        options=(LauncherOption("--kernel", "Kernel", "python3", "The environment of the nodes"),),
        arguments="choices of the Hub's form for a server, such as profile=gpu",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._options = parse_options(plan.settings.launcher_args)
        self._others: set[str] = set()  # Names of servers that existed before.
        self._touching: asyncio.Task[None] | None = None

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        """Check that this is a server of a Hub; one node unless the user says otherwise."""
        read_access(parse_options(settings.launcher_args), os.environ)
        return super().complete(settings)

    def _servers(self) -> HubServers:
        return HubServers(read_access(self._options, os.environ))

    def make_node(self, node_rank: int) -> HubNode:
        return HubNode(self.plan.settings.name, node_rank)

    async def bring(self, node: HubNode, join_line: asyncio.Future[str]) -> None:
        """Start server, kernel and agent."""
        servers, cluster = self._servers(), self.plan.settings.name

        def show_stage(text: str) -> None:
            node.stage = text or node.stage

        taken = await servers.running(stopped=bool(self.plan.first))
        if self.plan.first:  # nodes that have left may have made room for a number whose server is still there
            names = (server_name(cluster, n) for n in itertools.count(node.rank))
            node.name = next(name for name in names if name not in taken)
        elif node.name in taken:
            self._others.add(node.name)
            raise LaunchError(
                f"a server called {node.name} is already running, for another cluster {cluster} of "
                "yours or left over from one: start with another --name, or stop it on the Hub's page /hub/home"
            )
        node.is_mine = True
        address = await servers.spawn(node.name, self._options.choices, show_stage)
        show_stage("waiting for the controller")
        line = await asyncio.shield(join_line)
        show_stage("starting its agent")
        await self._start_agent(address, node.rank, line)
        show_stage("has joined")

    async def _start_agent(self, server: ServerAddress, rank: int, line: str) -> None:
        settings = self.plan.settings
        code = _AGENT.format(env=dict(settings.env), line=line, node_rank=rank, fork=settings.fork)
        await run_code(server, code, self._options.kernel)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another agent on the node's server, or on a new server if that is gone."""
        servers, name = self._servers(), server_name(self.plan.settings.name, node_rank)
        node = self.nodes.setdefault(node_rank, self.make_node(node_rank))
        node.is_mine = True
        if (await servers.running()).get(name, {}).get("ready"):
            address = await servers.address(name)
        else:
            await servers.remove(name)
            address = await servers.spawn(name, self._options.choices, lambda _: None)
        await self._start_agent(address, node_rank, join_line)
        node.failure = ""
        return True

    async def release(self) -> None:
        """Start to report activity for the servers."""
        if self._touching is None:
            self._touching = asyncio.get_running_loop().create_task(self._touch())

    async def _touch(self) -> None:
        """Report activity while this process lives, so that the Hub does not stop the nodes' servers as idle."""
        while True:
            await asyncio.sleep(_TOUCH)
            servers = self._servers()
            for node in [n for n in self.nodes.values() if not n.failure]:
                try:
                    await servers.touch(node.name)
                except LaunchError as e:  # another may still be there
                    node.stage = str(e)

    async def end(self) -> None:
        """Stop and remove the servers that this launcher requested."""
        if self._touching is not None:
            self._touching.cancel()
            await asyncio.wait([self._touching])
        await super().end()
        mine = [node for node in self.nodes.values() if node.is_mine]
        await self._remove([node.name for node in mine])
        for node in mine:
            node.is_mine = False

    async def remove_leftovers(self) -> None:
        """Stop and remove the cluster's servers, whichever client requested them, but none that existed before."""
        cluster = self.plan.settings.name
        try:
            found = await self._servers().running(stopped=True)
        except UsageError as e:
            raise LaunchError(f"servers jdist-{cluster}-… are still there; stop them on the Hub's page ({e})") from None
        own = re.compile(rf"jdist-{re.escape(cluster)}-\d+")
        await self._remove([name for name in found if own.fullmatch(name) and name not in self._others])

    async def _remove(self, names: list[str]) -> None:
        if not names:
            return
        servers = self._servers()
        ends = await asyncio.gather(*(servers.remove(name) for name in names), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end


def server_name(cluster: str, node_rank: int) -> str:
    """Name under which any client of the cluster finds the server."""
    return f"jdist-{cluster}-{node_rank}"


def read_access(options: HubOptions, environ: Mapping[str, str]) -> HubAccess:
    """How to reach the Hub, from the server's environment and the user's options. Raises UsageError."""
    given = {name: environ.get(name, "") for name in _NEEDED}
    if options.token_file:
        try:
            given["JUPYTERHUB_API_TOKEN"] = Path(options.token_file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"--token-file {options.token_file} cannot be read: {e}") from None
    if missing := ", ".join(name for name, value in given.items() if not value):
        raise UsageError(f"--launcher hub is for notebooks on a JupyterHub; this kernel's environment lacks {missing}")
    url, token, user = given.values()
    return HubAccess(url.rstrip("/"), user, token, _public(options, environ))


def _public(options: HubOptions, environ: Mapping[str, str]) -> str:
    """Address of the Hub's proxy. Never guessed, since a token is sent there."""
    if options.url:
        return options.url
    own = urlsplit(environ.get("JUPYTERHUB_PUBLIC_URL", ""))  # of this server, where the Hub was told its own
    if own.netloc:
        return f"{own.scheme}://{own.netloc}"
    host, port = environ.get("PROXY_PUBLIC_SERVICE_HOST"), environ.get("PROXY_PUBLIC_SERVICE_PORT")
    return f"http://{host}:{port}" if host and port else ""  # the Hub's Helm chart for Kubernetes


def parse_options(words: Sequence[str]) -> HubOptions:
    """Parse the options: ``profile=gpu`` is a string, ``cpu:=4`` any other JSON value. Raises UsageError."""
    parser = ArgumentParser("--launcher hub --")
    parser.add_argument("--kernel", default="", metavar="NAME")
    parser.add_argument("--url", default="", metavar="https://HUB")
    parser.add_argument("--token-file", default="", metavar="FILE")
    parser.add_argument("choices", nargs="*", default=[], metavar="OPTION=VALUE")
    found = parser.parse_intermixed_args(list(words))
    if found.url and urlsplit(found.url).scheme not in ("http", "https"):
        parser.error(f"--url {found.url!r}: write https://HUB")
    return HubOptions(dict(_choice(parser, w) for w in found.choices), found.kernel, found.url, found.token_file)


def _choice(parser: ArgumentParser, word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name.rstrip(":"):
        parser.error(f"{word!r}: write OPTION=VALUE, as in profile=gpu")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError:
        parser.error(f"{word!r}: {value!r} is no JSON")
