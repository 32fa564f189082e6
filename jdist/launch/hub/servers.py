"""Hub servers: a user's named servers, made, followed and removed through JupyterHub's REST API.

What a named server is (a process, a batch job, a pod, a container) is the business of the Hub's spawner. The API is
described at https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html; what is used of it is there from 2.0.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import Struct
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.iostream import StreamClosedError

from jdist.core.errors import LaunchError

_ANSWER = 60.0
"""Seconds for an answer; the Hub itself waits 10 s for a quick spawner before it answers."""
_SILENCE = 60.0
"""Seconds without a byte of the progress stream, to which the Hub adds an empty line every 8 s."""
_GONE_WITHIN = 90.0
"""Seconds for a spawner to stop what it started."""
_LOOK = 0.5
"""Between two looks whether a server is gone (the Hub tells nobody)."""
_MAY_START = "servers!user"
_MAY_USE = "access:servers!user"


class Reach(Struct, frozen=True):
    """Where the Hub is, and as whom to speak to it."""

    api: str
    """Such as ``http://127.0.0.1:8081/hub/api``."""
    user: str
    token: str
    public: str = ""
    """Scheme and host at which browsers find users' servers; empty: what the Hub says of a server."""


class Address(Struct, frozen=True):
    """Where a server answers, behind the Hub's proxy."""

    url: str
    token: str

    def at(self, path: str, scheme: str = "") -> str:
        """The address of a path below it; ``scheme`` "ws" for its websocket."""
        base = self.url.rstrip("/")
        return (base.replace("http", scheme, 1) if scheme else base) + "/" + path


async def fetch(url: str, token: str, method: str = "GET", body: Any = None, **options: Any) -> HTTPResponse:
    """One request. Raises LaunchError when nobody answers; what is answered is the caller's to judge."""
    client = AsyncHTTPClient(force_instance=True)
    request = HTTPRequest(
        url,
        method,
        headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
        body=None if body is None else json.dumps(body),
        allow_nonstandard_methods=True,  # a DELETE with a body, a POST without
        follow_redirects=False,  # the token is for this address alone
        **{"request_timeout": _ANSWER, **options},
    )
    try:
        return await client.fetch(request, raise_error=False)
    except (OSError, HTTPClientError, StreamClosedError, ValueError) as e:
        raise LaunchError(f"nobody answers at {_origin(url)}: {str(e) or type(e).__name__}") from None
    finally:
        client.close()


def check(response: HTTPResponse, doing: str, scope: str = _MAY_START) -> HTTPResponse:
    """The response, if it is a yes. Raises LaunchError with the Hub's reason, and who can do what about it."""
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
    """What a yes says. Raises LaunchError where it is somebody else's, such as a page for people."""
    try:
        said = json.loads(response.body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise LaunchError(f"what answers at {_origin(response.request.url)} is no JupyterHub: -- --url https://HUB")
    return said


class HubServers:
    """The named servers of one user."""

    def __init__(self, reach: Reach):
        self._reach = reach

    async def running(self, *, stopped: bool = False) -> dict[str, dict[str, Any]]:
        """What the Hub says of each named server that is not stopped; with ``stopped``, of all. Raises LaunchError."""
        query = "?include_stopped_servers=1" if stopped else ""
        answer = check(
            await self._ask("GET", f"users/{self._user}{query}"), "to list your servers", "read:servers!user"
        )
        servers = read(answer).get("servers")
        if servers is None:
            raise LaunchError(f"the Hub does not list your servers; {_ask_for('read:servers!user')}")
        return {name: model for name, model in servers.items() if name}

    async def spawn(self, name: str, options: dict[str, Any], tell: Callable[[str], None]) -> Address:
        """Have a named server started, and wait until it is ready. Raises LaunchError with the spawner's reason."""
        while True:
            answer = await self._ask("POST", self._path(name), options)
            delay = answer.headers.get("Retry-After", "")
            if answer.code != 429 or not delay.isdecimal():
                break
            tell(f"the Hub starts many servers right now; asked again in {delay} s")
            await asyncio.sleep(float(delay))
        if answer.code < 500:  # else its spawner has failed at once, and the reason stands in the progress
            check(answer, f"to start server {name}")
        await self._follow(name, tell)
        return await self.address(name)

    async def _follow(self, name: str, tell: Callable[[str], None]) -> None:
        """Until the Hub says that the server is ready. How long that may take is for its spawner to say."""
        said = ""
        while True:
            progress = await self._progress(name, tell)
            if progress.get("ready"):
                return
            said = progress.get("message") or said
            if progress.get("failed"):
                raise LaunchError(f"the Hub could not start server {name}: {said}")
            model = (await self.running()).get(name)
            if model is None:
                raise LaunchError(f"the Hub could not start server {name}: {said or 'it says no more than that'}")
            if model["ready"]:
                return
            await asyncio.sleep(_LOOK)

    async def _progress(self, name: str, tell: Callable[[str], None]) -> dict[str, Any]:
        """The last event of the stream of them, which may break."""
        buffer, last = bytearray(), dict[str, Any]()
        loop = asyncio.get_running_loop()

        def take(chunk: bytes) -> None:
            silence.reschedule(loop.time() + _SILENCE)
            buffer.extend(chunk)
            while b"\n" in buffer:
                line, _, rest = bytes(buffer).partition(b"\n")
                buffer[:] = rest
                if line.startswith(b"data:"):
                    last.update(json.loads(line[5:]))
                    tell(str(last.get("message", "")))

        url = f"{self._reach.api}/{self._path(name)}/progress"
        try:
            async with asyncio.timeout(_SILENCE) as silence:
                answer = await fetch(url, self._reach.token, request_timeout=0, streaming_callback=take)
            if answer.code in (401, 403, 404):
                check(answer, f"to follow the start of server {name}", "read:servers!user")
        except TimeoutError:
            tell("the Hub has fallen silent; asking again")
        return last

    async def address(self, name: str) -> Address:
        """Where a server that is ready answers. Raises LaunchError."""
        model = (await self.running()).get(name)
        if model is None or not model["ready"]:
            raise LaunchError(f"server {name} does not run")
        full = str(model.get("full_url") or model["url"])
        if self._reach.public:
            full = self._reach.public.rstrip("/") + urlsplit(full).path
        if not full.startswith("http"):
            raise LaunchError(
                f"server {name} runs, and the Hub does not say at which public address: write -- --url https://HUB "
                "(the Hub's admin: c.JupyterHub.public_url = 'https://HUB')"
            )
        return Address(full, self._reach.token)

    async def remove(self, name: str) -> None:
        """Stop a server, or its start, and forget it; nothing if there is none. Raises LaunchError."""
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
        """Have a server count as in use, for a Hub that stops idle ones; False if it is there no more."""
        address = await self.address(name)
        return (await fetch(address.at("api/kernels"), address.token)).code == 200

    @property
    def _user(self) -> str:
        return quote(self._reach.user, safe="@~")

    def _path(self, name: str) -> str:
        return f"users/{self._user}/servers/{quote(name, safe='')}"

    async def _ask(self, method: str, path: str, body: Any = None) -> HTTPResponse:
        return await fetch(f"{self._reach.api}/{path}", self._reach.token, method, body)


def _reason(response: HTTPResponse) -> str:
    """What a Hub or a server says of a no: JSON with a message, or a page for people."""
    try:
        said = json.loads(response.body).get("message", "")
    except (ValueError, AttributeError):
        said = ""
    return str(said or response.reason)


def _ask_for(scope: str) -> str:
    """Who can do what about a scope that is lacking."""
    scopes = f'["users:activity!user", "access:servers!server", "{_MAY_START}", "{_MAY_USE}"]'
    return (
        f"the token lacks the scope {scope}. The Hub's admin can give it to every server: c.Spawner.server_token_scopes"
        f" = {scopes}; or make a token of your own on the Hub's page /hub/token, keep it in a file of mode 0600, and "
        "start with -- --token-file FILE"
    )


def _is_forbidden(response: HTTPResponse) -> bool:
    """A token that may do it to some, but not to this one, is told that there is no such thing."""
    return response.code in (401, 403) or (response.code == 404 and "No access" in _reason(response))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
