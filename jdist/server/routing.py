"""Routing: which function answers which requests, for users that have logged in and are permitted to make them."""

from collections.abc import Awaitable, Callable
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from jdist.server.handler import Handler

_PATTERNS = {"NAME": r"([^/]+)", "R": r"([0-9]{1,9})", "N": r"([0-9]{1,9})"}  # Of the parts of a path that differ.

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
