"""Reaper: waits for a child that may outlive whoever started it, so that its end leaves no zombie."""

from __future__ import annotations

import subprocess
import threading


def reap(process: subprocess.Popen[bytes]) -> None:
    """Take the child's exit status whenever it comes, from a thread of its own."""
    threading.Thread(target=process.wait, name=f"jdist-reap-{process.pid}", daemon=True).start()
