"""Code: local files on every node: sync."""

from __future__ import annotations

import threading

from jdist.core.messages.base import Message
from jdist.core.messages.status import Notice
from jdist.core.quantities import ArgumentParser
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed
from jdist.notebook.text.transfer_progress import ProgressLine

Words = list[str]


def sync(s: Session, words: Words) -> None:
    """copy local code to every node, changed files only, and import from it: sync PATH [--exclude P] [--watch]"""
    p = ArgumentParser(
        typed("sync"), "Copy a file or folder to every node, what has changed only; ranks import from it."
    )
    p.add_argument("path")
    p.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="left out as well, as .gitignore would say it; !PATTERN takes back",
    )
    p.add_argument("--watch", action="store_true", help="sync again whenever something changes; without it, no longer")
    o = p.parse(words)
    with ProgressLine(s.screen) as line:
        synced = s.cluster.sync(o.path, exclude=o.exclude, watch=o.watch, on_progress=line.note)
        line.finish(str(synced))
    if not o.watch:
        return
    if s.kind == "command line":
        _follow(s)
    else:
        s.say(f"watching {o.path}: what changes is synced; {typed('sync')} {o.path} ends that")


def _follow(s: Session) -> None:
    """Say what is synced, until the user has seen enough (KeyboardInterrupt) or the cluster is gone."""
    s.say("watching; Ctrl-C ends it")
    over = threading.Event()

    def hear(message: Message) -> None:
        if isinstance(message, Notice):
            s.say(message.text)
        elif s.cluster.asynchronous.link.lost:
            over.set()

    unwatch = s.cluster.asynchronous.watch(hear)
    try:
        over.wait()
    finally:
        unwatch()
