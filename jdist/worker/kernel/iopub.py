"""Channels: a rank's Jupyter channels at less cost to each cell. What is sent, and in which order, stays the same.

A cell ends with flushes of stdout and stderr, each a wait for another thread even when nothing was written; and its
messages are packed by a JSON encoder in Python. On a node, every rank pays that at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from ipykernel.iostream import IOPubThread

_LOOK = 0.02
"""Seconds between two looks for the first subscriber."""
_POLLIN = 1
"""zmq.POLLIN."""


def pack_quickly(session: Any) -> None:
    """Let a Session pack by msgspec, and by its own packer what that refuses (lone surrogates, odd types)."""
    own: Callable[[Any], bytes] = session.pack

    def pack(part: Any) -> bytes:
        try:
            return msgspec.json.encode(part)
        except (TypeError, ValueError, msgspec.MsgspecError):
            return own(part)

    session.pack = pack


def flush_when_needed(stream: Any) -> None:
    """Let ``flush`` of an ipykernel OutStream return at once when there is nothing that could be overtaken."""
    wait_for_thread: Callable[[], None] = stream.flush
    send: Callable[[], None] = stream._flush
    sending = 0

    def counted() -> None:  # runs on the IOPub thread, also by its timer
        nonlocal sending
        sending += 1
        try:
            send()
        finally:
            sending -= 1

    def flush() -> None:
        # In this order: the buffers are emptied only after the count has gone up.
        if stream._buffers or sending:
            wait_for_thread()

    stream._flush = counted
    stream.flush = flush


def note_greetings() -> None:
    """Have each IOPub thread remember that a subscriber came; call before the kernel makes its own."""
    threads: Any = IOPubThread
    original = threads._handle_subscription

    def handle(thread: Any, frames: list[bytes]) -> None:
        thread.has_greeted = True
        original(thread, frames)

    threads.has_greeted = False
    threads._handle_subscription = handle


def look_for_subscriber(thread: Any) -> None:
    """Have the IOPub thread see its first subscriber, the agent, which takes the greeting for the sign that it hears.

    ipykernel (7.4) sends on the socket behind its stream's back. A send may swallow the edge that tells of a
    subscriber, who is then not seen before something else comes; so until one has been greeted, the thread looks.
    """

    def look() -> None:
        if thread.has_greeted or thread._xpub_stream.closed():
            return
        thread._xpub_stream.flush(_POLLIN)
        thread.io_loop.call_later(_LOOK, look)

    thread.io_loop.add_callback(look)
