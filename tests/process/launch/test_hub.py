"""What a Hub may answer that the real one in tests/hub does not by itself: told by a small server with its paths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from jdist.core.errors import LaunchError
from jdist.launch.hub import HubAccess, HubServers, ServerAddress

READY = {"ready": True, "pending": None, "url": "/user/ann/n/"}


class ToldHub:
    """Gives the answers in ``answers``, in their order: a status, a body, headers; notes what it was asked."""

    def __init__(self, *answers: tuple[int, Any] | tuple[int, Any, dict[str, str]]):
        self.answers = list(answers)
        self.asked: list[tuple[str, str, str]] = []
        hub = self

        class Anything(RequestHandler):
            def answer(self) -> None:
                token = self.request.headers.get("Authorization", "")
                hub.asked.append((self.request.method or "", self.request.uri or "", token))
                status, body, *headers = hub.answers.pop(0)
                self.set_status(status)
                for name, value in headers[0].items() if headers else ():
                    self.set_header(name, value)
                self.write(body if isinstance(body, str) else json.dumps(body))

            get = post = delete = answer  # type: ignore[assignment]

        self._application = Application([(r"/.*", Anything)])

    def serve(self, work: Callable[[HubServers, str], Awaitable[Any]], public: str = "") -> Any:
        """What ``work`` returns; it is given the user's servers, and the server's own address."""

        async def run() -> Any:
            socket, port = bind_unused_port()
            server = HTTPServer(self._application)
            server.add_socket(socket)
            own = f"http://127.0.0.1:{port}"
            try:
                return await asyncio.wait_for(
                    work(HubServers(HubAccess(f"{own}/hub/api", "ann", "s3cret", public)), own), 30
                )
            finally:
                server.stop()
                await server.close_all_connections()

        return asyncio.run(run())


def listing(**models: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"name": "ann", "servers": {"": READY, **models}}


def events(*said: dict[str, Any]) -> tuple[int, str]:
    return 200, "".join(f"data: {json.dumps(e)}\n\n\n\n" for e in said)


def test_a_busy_hub_is_asked_again_when_it_says_and_a_stream_that_breaks_is_followed_again() -> None:
    hub = ToldHub(
        (429, {"message": "Too many users"}, {"Retry-After": "0"}),
        (202, ""),
        events({"progress": 10, "message": "0/3 nodes are available"}),
        listing(n={"ready": False, "pending": "spawn", "url": "/user/ann/n/"}),
        events({"progress": 90, "message": "pulling"}, {"progress": 100, "ready": True, "message": "ready"}),
        listing(n=READY),
    )
    told: list[str] = []
    address = hub.serve(lambda s, _: s.spawn("n", {"profile": "gpu"}, told.append), public="https://hub.example.org")
    assert address == ServerAddress("https://hub.example.org/user/ann/n/", "s3cret")
    assert told == [
        "the Hub starts many servers right now; asked again in 0 s",
        "0/3 nodes are available",
        "pulling",
        "ready",
    ]
    assert [m for m, *_ in hub.asked] == ["POST", "POST", "GET", "GET", "GET", "GET"]
    assert {t for *_, t in hub.asked} == {"token s3cret"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            [(429, {"message": "Active user limit exceeded"})],
            "to start server n: the Hub answers 429: Active user limit",
        ),
        ([(400, {"message": "Named servers are not enabled."})], "c.JupyterHub.allow_named_servers = True"),
        ([(404, {"message": "No access to resources or resources not found"})], "lacks the scope servers!user"),
        ([(302, "", {"Location": "https://hub/hub/login"})], "sends on to https://hub/hub/login"),
        ([(202, ""), events({"ready": True}), (200, "<html>")], "is no JupyterHub: -- --url https://HUB"),
        ([(502, "<html>")], "the Hub answers 502: Bad Gateway"),
        (
            [(202, ""), events({"message": "Spawn failed: no quota", "failed": True})],
            "could not start server n: .*no quota",
        ),
        ([(202, ""), events({"message": "Evicted"}), listing()], "could not start server n: Evicted"),
        ([(202, ""), (403, {"message": "no"})], "to follow the start of server n .*lacks the scope read:servers!user"),
        ([(201, ""), events({"ready": True}), listing(n=READY)], "-- --url https://HUB"),
    ],
)
def test_why_a_server_cannot_be_had(answers: list[Any], message: str) -> None:
    if answers[0][0] == 502:  # what a spawner says stands in the progress; a broken proxy has none
        answers.extend([(502, "<html>"), (502, "<html>")])
    with pytest.raises(LaunchError, match=message):
        ToldHub(*answers).serve(lambda s, _: s.spawn("n", {}, lambda _: None))


def test_a_server_that_takes_its_time_to_stop_is_waited_for() -> None:
    stopping = {"ready": False, "pending": "stop", "url": "/"}
    hub = ToldHub(
        (500, {"message": "pending"}), listing(n=stopping), (202, ""), listing(n=stopping), (404, {"message": "no n"})
    )
    hub.serve(lambda s, _: s.remove("n"))
    assert not hub.answers


def test_a_sign_of_life_goes_to_the_server_itself() -> None:
    hub = ToldHub(listing(n=READY), (200, []))

    async def touch(_: HubServers, own: str) -> bool:
        return await HubServers(HubAccess(f"{own}/hub/api", "ann", "s3cret", own)).touch("n")

    assert hub.serve(touch)
    assert hub.asked[-1] == ("GET", "/user/ann/n/api/kernels", "token s3cret")


def test_nobody_is_there() -> None:
    hub = ToldHub()

    async def ask(_: HubServers, own: str) -> None:
        await HubServers(HubAccess("http://127.0.0.1:1/hub/api", "ann", "s3cret")).running()

    with pytest.raises(LaunchError, match=r"nobody answers at http://127\.0\.0\.1:1"):
        hub.serve(ask)
