"""Handle requests: routing, access, errors, bodies, and the way to the client's loop and back.

Only users who have logged in and are permitted to make a request reach the function that answers it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from jupyter_server.utils import ensure_async
from tornado import web

from jdist.client.attachment import Ranks
from jdist.client.cluster import AsyncCluster
from jdist.client.threads import bridge
from jdist.core.errors import JdistError, UsageError
from jdist.server.cluster_list import ClusterList
from jdist.server.snapshots import redacted

T = TypeVar("T")

RESOURCE = "jdist"  # The resource that an authorizer is asked about; also the extension's name.
ANSWER_TIMEOUT = 10.0  # Seconds for an answer; what takes longer goes on, and is answered with 202.
RESULT_TIMEOUT = 40.0  # Seconds for what must have ended before it can be answered.


async def cross(work: Coroutine[Any, Any, T], within: float) -> T:
    """Run ``work`` on the client's loop, so that a cluster never blocks the server's.

    After ``within`` seconds the work is cancelled, and TimeoutError raised.
    """
    future, _ = bridge().begin(work)
    try:
        async with asyncio.timeout(within):
            return await asyncio.wrap_future(future)
    finally:
        future.cancel()


class Handler(ExtensionHandlerMixin, APIHandler):
    """A route. GET only reads, so it does not count as activity: an open panel lets the server be culled."""

    auth_resource = RESOURCE

    def update_api_activity(self) -> None:
        if self.request.method != "GET":
            super().update_api_activity()

    @property
    def clusters(self) -> ClusterList:
        found: ClusterList | None = self.settings[RESOURCE].clusters
        if found is None:
            raise web.HTTPError(503, "jdist is not ready yet; ask again")
        return found

    async def may(self, action: str) -> bool:
        """Whether the user may do more than this request needs."""
        asked = self.authorizer.is_authorized(self, self.current_user, action, self.auth_resource)
        return bool(await ensure_async(asked))

    async def cross(self, work: Coroutine[Any, Any, T], within: float = RESULT_TIMEOUT) -> T:
        """The result of ``work`` on the client's loop, with its errors as HTTP's."""
        try:
            return await cross(work, within)
        except TimeoutError:
            raise web.HTTPError(504, f"no answer within {within:.0f} s") from None
        except (JdistError, OSError) as e:
            status = 400 if isinstance(e, UsageError) else 502
            raise web.HTTPError(status, redacted(str(e)), reason=type(e).__name__) from None

    async def ask(
        self, name: str, what: Callable[[AsyncCluster], Awaitable[T]], whom: str, within: float = ANSWER_TIMEOUT
    ) -> T:
        """Ask the cluster called ``name``; 504 if ``whom`` it asks does not answer in time."""
        self.check(name)
        found = await self.cross(self.clusters.act(name, what, within))
        if found is None:
            raise web.HTTPError(504, f"no answer from {whom}")
        return found

    def check(self, name: str, cluster: object = "") -> None:
        """Raise 404 if there is no cluster called ``name``, and 410 if it is not the one whose id is ``cluster``."""
        found = self.clusters.snapshot(name)
        if found is None:
            raise web.HTTPError(404, f"there is no cluster called {name}")
        if cluster and found.cluster and cluster != found.cluster:
            raise web.HTTPError(410, f"the cluster {name} of this output is gone; another one has that name now")

    def send(self, body: object, status: int = 200) -> None:
        """Finish with a JSON body."""
        self.set_status(status)
        self.finish(msgspec.json.encode(body))

    def send_done(self, is_done: bool) -> None:
        """Finish with 200, or with 202 if it goes on."""
        self.send({"state": "done" if is_done else "under way"}, 200 if is_done else 202)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = (kwargs.get("exc_info") or (None, None))[1]
        if not isinstance(error, web.HTTPError) or not error.log_message:
            super().write_error(status_code, **kwargs)
            return
        # tornado doubles each % of a message without arguments
        self.finish(msgspec.json.encode({"message": error.log_message % error.args, "reason": error.reason}))

    def body(self) -> dict[str, Any]:
        """The request's JSON object, {} if it has none."""
        body = self.get_json_body() or {}
        if not isinstance(body, dict):
            raise web.HTTPError(400, "the request's body is a JSON object, or empty")
        return body

    def ranks(self) -> Ranks:
        """The body's ranks: as a user writes them, a list of numbers, or None for all."""
        found = self.body().get("ranks")
        if found is None or isinstance(found, str):
            return found
        if isinstance(found, list) and found and all(type(each) is int for each in found):
            return found
        raise web.HTTPError(400, 'ranks: "0-1", or a list of numbers; all if it is left out')

    def number(self, name: str, default: str, least: int, most: int) -> int:
        """The query argument ``name``, a whole number."""
        text = self.get_query_argument(name, default)
        if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
            raise web.HTTPError(400, f"{name}: a number from {least} to {most}")
        return int(text)


_NUMBER = r"([0-9]{1,9})"
_PATTERNS = {"NAME": r"([^/]+)", "HOST": r"([^/]+)", "R": _NUMBER, "N": _NUMBER}  # Of the parts of a path that differ.

_Method = Callable[..., Awaitable[None]]
_methods: dict[str, dict[str, Any]] = {}  # By path, as a regular expression, and HTTP method.


def route(method: str, path: str, action: str | None = None) -> Callable[[_Method], _Method]:
    """Register a function that answers requests of users who may do ``action`` (by default ``method``'s)."""
    pattern = "/".join(_PATTERNS.get(part, part) for part in ("jdist", *path.split("/")))

    def register(function: _Method) -> _Method:
        permitted: _Method = authorized(action=action)(function)
        _methods.setdefault(pattern, {})[method.lower()] = web.authenticated(permitted)
        return function

    return register


def all_routes() -> list[tuple[str, type[Handler]]]:
    """The routes of all modules that have been imported, as a server takes them."""
    return [(pattern, type("Route", (Handler,), methods)) for pattern, methods in _methods.items()]
