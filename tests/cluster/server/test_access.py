"""Who may do what: every route is walked without a token, against an authorizer, and from another's page."""

from __future__ import annotations

import re
from http import HTTPStatus

import pytest

from jdist.server import extension  # noqa: F401 — it registers all routes
from jdist.server.handler import all_routes
from support.server.serving import Server

ROUTES = all_routes()
PATHS = {
    r"jdist/clusters": "jdist/clusters",
    r"jdist/launch": "jdist/launch",
    **{
        pattern: re.sub(r"\([^)]*\)", "shared", pattern, count=1).replace("([0-9]{1,9})", "0")
        for pattern, _ in ROUTES
        if "(" in pattern
    },
}
EXECUTED = ("/interrupt", "/restart", "/revive", "/pause", "/resume", "/frame", "/instructions", "/cells")
EXECUTED += ("/nodes", "/sync", "/doctor", "/login")
ACTIONS = {"GET": "read", "POST": "write", "DELETE": "write"}


def walk() -> list[tuple[str, str]]:
    """Every method of every route."""
    return [
        (method, PATHS[pattern])
        for pattern, handler in ROUTES
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
        if method.lower() in vars(handler)
    ]


def test_the_walk_is_of_all_routes() -> None:
    assert len(walk()) == 33
    assert {path for _, path in walk()} == set(PATHS.values())


@pytest.mark.parametrize(("method", "path"), walk())
def test_nobody_gets_in_without_a_token(server: Server, method: str, path: str) -> None:
    body = None if method == "GET" else {}
    for headers in ({}, {"Authorization": "token wrong"}):
        status, _ = server.browser.request(method, path, body, headers)
        assert status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED)
    assert not server.browser.request("GET", "jdist/clusters")[1].get("text")


@pytest.mark.parametrize(("method", "path"), walk())
def test_nobody_does_what_the_authorizer_denies(server: Server, method: str, path: str) -> None:
    is_executing = method != "GET" and path.endswith(EXECUTED)
    is_executing |= "/variables/" in path
    action = "execute" if is_executing else ACTIONS[method]
    with server.denying(action):
        status, _ = server.browser.request(method, path, None if method == "GET" else {})
    assert status == HTTPStatus.FORBIDDEN
    assert (server.bed / "asked").read_text().splitlines()[-1] == f"{method} {action}"


@pytest.mark.parametrize(("method", "path"), [each for each in walk() if each[0] != "GET"])
def test_a_page_of_somebody_else_changes_nothing(server: Server, method: str, path: str) -> None:
    cookie = server.cookie()
    status, _ = server.browser.request("GET", "jdist/clusters", None, {"Cookie": cookie, "Referer": server.browser.url})
    assert status == HTTPStatus.OK
    status, answer = server.browser.request(method, path, {}, {"Cookie": cookie})
    assert status == HTTPStatus.FORBIDDEN
    assert "_xsrf" in answer["message"]
