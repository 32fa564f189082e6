"""Servers: a user's named servers, started, followed and removed through JupyterHub's REST API, and code run on them.

All used here is in the API (https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html) of 2.0. Code is sent
over a kernel's websocket (https://jupyter-server.readthedocs.io/en/latest/developers/websocket-protocols.html), so
nothing needs to be installed in the server, and the code is in no command line, environment, log or history.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import Struct
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketError, websocket_connect

from jdist.core.errors import LaunchError

_ANSWER = 60.0  # Seconds for a response; the Hub itself waits 10 s for a quick spawner before it responds.
_SILENCE = 60.0  # Seconds without a byte of the progress stream, in which the Hub sends an empty line every 8 s.
_GONE_WITHIN = 90.0  # Seconds for a spawner to stop a server.
_RUN_WITHIN = 180.0  # Seconds for a kernel to start and to run code.
_LOOK = 0.5  # Seconds between two polls whether a server is gone; the Hub sends no notification.
_MAY_START = "servers!user"
_MAY_USE = "access:servers!user"


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
