"""Ports that a test chooses and another process takes later."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port that no other process gets by itself while its user takes time to start: below the ephemeral ones."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError("no port is free")
