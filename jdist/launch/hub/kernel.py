"""Kernel: runs a piece of code once on a Jupyter server, on a kernel started for that alone.

It uses the server's REST API and the kernel's websocket
(https://jupyter-server.readthedocs.io/en/latest/developers/websocket-protocols.html), so that nothing needs to be
installed in the server. The code appears in no command line, environment, log or history.
"""

import asyncio
import contextlib
import json
import uuid
from datetime import UTC, datetime
from typing import Any

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketError, websocket_connect

from jdist.core.errors import LaunchError
from jdist.launch.hub.servers import ServerAddress, check, fetch, read

_WITHIN = 180.0  # Seconds for the kernel to start and to run the code.
_ACCESS = "access:servers!user"


async def run_code(server: ServerAddress, code: str, kernel: str = "") -> None:
    """Run ``code`` on a new kernel of ``server``; ``kernel`` "" is the default kernel. Raises LaunchError."""
    wanted = {"name": kernel} if kernel else {}
    answer = await fetch(server.at("api/kernels"), server.token, "POST", wanted)
    made = read(check(answer, "to start a kernel on it", _ACCESS))
    try:
        async with asyncio.timeout(_WITHIN):
            reply = await _execute(server, made["id"], code)
    except TimeoutError:
        raise LaunchError(f"its kernel {made['name']} did not answer within {_WITHIN:.0f} s") from None
    except (OSError, HTTPClientError, StreamClosedError, WebSocketError, WebSocketClosedError) as e:
        raise LaunchError(
            f"its kernel cannot be spoken to through the Hub's proxy: {str(e) or type(e).__name__}"
        ) from None
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
                reply: dict[str, Any] = heard["content"]
                return reply
    raise LaunchError("its kernel's connection ended before it answered")
