"""Listening: whether a Jupyter server that was started is there, and its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
"""Seconds in which a server ends its kernels and itself."""


def listens(info: Path, within: float) -> bool:
    """Whether the server that writes this ``jpserver-PID.json`` takes connections, which is a moment later."""
    try:
        found = json.loads(info.read_text())
    except (FileNotFoundError, ValueError):  # not there yet, or not whole
        return False
    try:
        with socket.create_connection((found["hostname"], found["port"]), within):
            return True
    except ConnectionRefusedError:
        return False


def end(server: subprocess.Popen[bytes], said: Callable[[], str]) -> None:
    """With its kernels; AssertionError with what it ``said`` if it has to be killed."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        raise AssertionError(f"the server did not end: {said()}") from None
