"""Verbs of code: scripts and plain cells on ranks, local files on every node, and the session as a script."""

import os
import threading
from argparse import Namespace

from jdist.client.active_runs import script_cell
from jdist.core.errors import Remedy, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import Notice
from jdist.core.quantities import ArgumentParser, parse_count
from jdist.core.rank_code import run_module
from jdist.notebook.export import export as write_script
from jdist.notebook.options import add_script_options
from jdist.notebook.output.display import RunDisplay
from jdist.notebook.output.progress import TransferProgress
from jdist.notebook.output.render import recorded_bundle
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed, worded
from jdist.notebook.verbs.registry import Words, option, verb


def _add_options(p: ArgumentParser) -> None:
    p.add_ranks()
    add_script_options(p)


def _before_script(words: Words) -> tuple[Words, Words]:
    """The script's name and the words after it are not options of the verb."""
    parser = ArgumentParser("")
    _add_options(parser)
    count, _ = parser.leading_options(words)
    return words[:count], words[count:]


def cell_of(script: Words, *, is_module: bool, in_job: bool = False) -> str:
    """The cell that runs a script or a module with its arguments. Raises UsageError."""
    name, args = script[0], script[1:]
    if is_module:
        return run_module(name, args, os.getcwd(), in_job=in_job)
    if not name.endswith(".py"):
        raise UsageError(f"{typed('run')} SCRIPT.py [args]: {name} is not a Python script; -m runs a module")
    return script_cell(name, args, in_job=in_job)


@verb("run", _add_options, split=_before_script)
def run(s: Session, o: Namespace) -> None:
    """run a torchrun script on every rank, in the live session: run [-r RANKS] [-t S] [--hold] SCRIPT.py [args]

    It runs as __main__. With -m, give the name of a module instead of SCRIPT.py.
    """
    if not o.rest:
        raise UsageError(f"{typed('run')} [-r RANKS] [-t S] SCRIPT.py [args]: a script is missing")
    code = cell_of(o.rest, is_module=o.module)
    ranks = s.cluster.select(o.ranks, o.group)
    s.debugged, allow_stdin = (), len(ranks) == 1
    cell = s.cluster.submit(code, ranks, timeout=o.timeout, allow_stdin=allow_stdin, holds=o.hold)
    s.last_run = cell
    notices, names = s.drain_notices(), s.namespace
    display = RunDisplay(
        s.cluster, cell, s.screen, timeout=o.timeout, notices=notices, namespace=names, widgets=s.widgets
    )
    is_over = display.follow(until_paused=s.kind == "notebook")
    s.drain_notices()  # the display has shown it
    if is_over:
        cell.check()


@verb(
    "output",
    option("run", nargs="?", type=parse_count, default=0, metavar="RUN", help="a run's number"),
    option("--full", action="store_true", help="show whole tracebacks, also the frames of installed packages"),
)
def output(s: Session, o: Namespace) -> None:
    """show again what a run wrote and how it ended, even one of another notebook: output [RUN] [--full]

    Without a number, it shows the newest run. The cluster keeps the output of its newest runs, even if the notebook
    that started them is gone.
    """
    run = s.cluster.read_run(o.run)
    s.screen.show(recorded_bundle(s.cluster, run, is_full=o.full))
    if len(run.metrics):
        s.screen.show(run.metrics.bundle())


@verb("auto", option("state", choices=["on", "off"]), attaches=None)
def auto(s: Session, o: Namespace) -> None:
    """run every ordinary cell on all ranks: auto on|off"""
    if o.state == "on":
        name = s.cluster.name
        here = "cells that begin with % or ! run here"
        s.echo(f"auto is on: plain cells run on all ranks of {name}; {here}. {typed('auto off')} ends it")
    else:
        s.echo("auto is off: plain cells run in the notebook")
    s.set_auto(o.state == "on")


_LEFT_OUT = "also leave out these files, as in a .gitignore; !PATTERN includes them again"
_EXCLUDE = option("--exclude", action="append", default=[], metavar="PATTERN", help=_LEFT_OUT)
_WATCH = option("--watch", action="store_true", help="sync again whenever a file changes; without it, watching ends")


@verb("sync", option("path"), _EXCLUDE, _WATCH)
def sync(s: Session, o: Namespace) -> None:
    """copy local code to every node (only changed files) and import from it: sync PATH [--exclude P] [--watch]"""
    with TransferProgress(s.screen) as line:
        synced = s.cluster.sync(o.path, exclude=o.exclude, watch=o.watch, on_progress=line.update)
        line.finish(str(synced))
    if o.watch and s.kind == "command line":
        _follow(s)
    elif o.watch:
        s.echo(f"watching {o.path}: changes are synced; {typed('sync')} {o.path} ends that")


def _follow(s: Session) -> None:
    """Show what is synced, until the user interrupts this (KeyboardInterrupt) or the cluster is gone."""
    s.echo("watching; Ctrl-C ends it")
    over = threading.Event()

    def on_message(message: Message) -> None:
        if isinstance(message, Notice):
            s.echo(worded(message))
        elif s.cluster.asynchronous.link.lost:
            over.set()

    unwatch = s.cluster.asynchronous.watch(on_message)
    try:
        over.wait()
    finally:
        unwatch()


_FORCE = option("--force", action="store_true", help="replace a file that was edited, or not written by export")


@verb("export", option("file", metavar="FILE.py"), _FORCE, attaches=None)
def export(s: Session, o: Namespace) -> None:
    """write the session's %%dist cells, in order, as a script for torchrun: export FILE.py [--force]"""
    if s.exportable is None:
        remedies = (Remedy("start", "make one, on which cells run that can be exported"),)
        raise UsageError("no cluster is in use", remedies=remedies)
    made = write_script(s.exportable, o.file, force=o.force)
    cells = f"{made.cells} cell{'' if made.cells == 1 else 's'}"
    left_out = f", {made.left_out} left out" if made.left_out else ""
    s.echo(f"written to {o.file}: {cells}{left_out}; its first lines say how to run it")
    for warning in made.warnings:
        s.echo(f"⚠ {warning}")
