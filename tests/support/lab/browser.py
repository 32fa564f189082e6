"""Browser: what a browser does: requests with a token or a cookie, and the websocket of events."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import websocket

TOKEN = "a-token-of-the-tests"
LONG = 60.0
"""Seconds within which anything happens, on a machine with other things to do."""

Json = dict[str, Any]


class Browser:
    """At a server; ``url`` ends with its base URL."""

    def __init__(self, url: str, token: str = TOKEN):
        self.url = url
        self.token = token

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Json]:
        """Status and answer."""
        headers = {"Authorization": f"token {self.token}"} if headers is None else headers
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=LONG) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as e:
            with e:
                return e.code, _decoded(e.read())

    def get(self, path: str) -> Json:
        status, answer = self.request("GET", path)
        assert status == HTTPStatus.OK, answer
        return answer

    def clusters(self) -> dict[str, Json]:
        return {c["name"]: c for c in self.get("jdist/clusters")["clusters"]}

    def listen(self) -> Listener:
        return Listener(self.url, self.token)


def _decoded(text: bytes) -> Json:
    try:
        found: Json = json.loads(text)
    except ValueError:
        return {"text": text.decode(errors="replace")}
    return found


class Listener:
    """The events' websocket."""

    def __init__(self, url: str, token: str):
        self.seen: list[Json] = []
        self._socket = websocket.create_connection(
            f"ws{url.removeprefix('http')}api/events/subscribe", header=[f"Authorization: token {token}"], timeout=LONG
        )

    def until(self, is_it: Callable[[Json], Any]) -> Json:
        """The first event from now on that is it."""
        deadline = time.monotonic() + LONG
        while True:
            self._socket.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                event = json.loads(self._socket.recv())
            except websocket.WebSocketTimeoutException:
                raise AssertionError(f"no such event; the last were {self.seen[-3:]}") from None
            if not event["schema_id"].endswith("/jdist/cluster/v1"):
                continue
            self.seen.append(event)
            if is_it(event):
                return event

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
