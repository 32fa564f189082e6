"""Blocking: the bridge from blocking code to the event loop, and Cluster, the twin derived from AsyncCluster."""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from jdist.client import find
from jdist.client.attachment import BaseCluster
from jdist.client.cluster import AsyncCluster
from jdist.client.doctor.diagnosis import Finding
from jdist.client.expressions import script_cell
from jdist.client.run import CellRun
from jdist.core.errors import UsageError
from jdist.core.profile import profile_options
from jdist.wire.awake_loop import AwakeLoop
from jdist.wire.transport.keys import Connection

if TYPE_CHECKING:
    from jdist.client.measure.profile import Profile

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_UNDO = 20.0  # Seconds for a cancelled coroutine to undo what it began.


class Bridge:
    """An asyncio loop on a thread of its own. ``call`` runs a coroutine there and blocks for its result."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = AwakeLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="jdist-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result. A KeyboardInterrupt cancels it, and is raised once it has undone what it began."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            work.close()
            where = "a process forked from" if os.getpid() != self._pid else "a callback on the client's thread of"
            raise UsageError(f"a cluster cannot be used in {where} the one that attached to it")
        future, ended = self.begin(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            ended.wait(_UNDO)
            raise

    def begin(self, work: Coroutine[Any, Any, R]) -> tuple[concurrent.futures.Future[R], threading.Event]:
        """The coroutine's future result, and an event set at its end, which comes later than a cancelled future's."""
        ended = threading.Event()

        async def noted() -> R:
            try:
                return await work
            finally:
                ended.set()

        return asyncio.run_coroutine_threadsafe(noted(), self.loop), ended


@functools.cache
def bridge() -> Bridge:
    """The process's one bridge."""
    return Bridge()


def blocking(
    method: Callable[Concatenate[AsyncCluster, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """A coroutine method of AsyncCluster as a blocking method of Cluster, with its signature and docstring."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return bridge().call(method(self.asynchronous, *args, **kwargs))

    return call


def like(method: Callable[..., Any]) -> Callable[[F], F]:
    """The decorated method has the signature and docstring of ``method``."""
    original = getattr(method, "__func__", method)  # of a class method: with its cls
    return lambda own: functools.update_wrapper(own, original)  # type: ignore[return-value]


class Cluster(BaseCluster):
    """A cluster, for notebooks and scripts: each method blocks until it is done. ``with`` stops it at the end."""

    panel: Callable[[], Any]  # added by jdist.notebook.panel, which this floor does not know

    def __init__(self, asynchronous: AsyncCluster):
        super().__init__(asynchronous.attachment)
        self.asynchronous = asynchronous

    @classmethod
    @like(AsyncCluster.start)
    def start(cls, *args: Any, **kwargs: Any) -> Self:
        return cls(bridge().call(AsyncCluster.start(*args, **kwargs)))

    @classmethod
    @like(AsyncCluster.attach)
    def attach(cls, name: str | None = None, *, kind: str = "python") -> Self:
        return cls(bridge().call(AsyncCluster.attach(name, kind=kind)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @like(AsyncCluster.run)
    def run(
        self, code: str, ranks: Any = None, *, background: bool = False, check: bool = True, **options: Any
    ) -> CellRun:
        run = bridge().call(self.asynchronous.run(code, ranks, background=True, **options))
        if background:
            return run
        try:
            self._wait(run)
        except KeyboardInterrupt:  # if the ranks fail of it, the error carries the run
            run.check()
            raise
        if check:
            run.check()
        return run

    def _wait(self, run: CellRun) -> None:
        """Wait for a run; a KeyboardInterrupt interrupts the ranks, too, and is raised once they are free."""
        try:
            run.wait()
        except KeyboardInterrupt:
            run.cancel()
            try:
                run.wait()
            except KeyboardInterrupt:  # Ctrl-C again: interrupt the cell's own handlers, too
                run.cancel()
                run.wait()
            raise

    @like(AsyncCluster.profile)
    def profile(self, code: str, ranks: Any = None, *, timeout: float | None = None, **options: Any) -> "Profile":
        chosen = self.select(ranks)
        run = self.submit(code, chosen, timeout=timeout, profile=profile_options(len(chosen), **options))
        with contextlib.suppress(KeyboardInterrupt):  # what there is up to then is the answer
            self._wait(run)
        return self.read_profile(run)

    @like(AsyncCluster.run_script)
    def run_script(self, path: str, args: Any = (), ranks: Any = None, *, timeout: float | None = None) -> CellRun:
        return self.run(script_cell(path, args), ranks, timeout=timeout)

    detach = blocking(AsyncCluster.detach)
    stop = blocking(AsyncCluster.stop)
    revived = blocking(AsyncCluster.revived)
    status = blocking(AsyncCluster.status)
    run_async = blocking(AsyncCluster.run_async)
    submit = blocking(AsyncCluster.submit)
    answer_input = blocking(AsyncCluster.answer_input)
    read_run = blocking(AsyncCluster.read_run)
    interrupt = blocking(AsyncCluster.interrupt)
    restart = blocking(AsyncCluster.restart)
    add_node = blocking(AsyncCluster.add_node)
    invite = blocking(AsyncCluster.invite)
    remove = blocking(AsyncCluster.remove)
    new_group = blocking(AsyncCluster.new_group)
    new_mesh = blocking(AsyncCluster.new_mesh)
    pull = blocking(AsyncCluster.pull)
    push = blocking(AsyncCluster.push)
    scatter = blocking(AsyncCluster.scatter)
    gather = blocking(AsyncCluster.gather)
    broadcast = blocking(AsyncCluster.broadcast)
    restore = blocking(AsyncCluster.restore)
    show = blocking(AsyncCluster.show)
    check = blocking(AsyncCluster.check)
    variables = blocking(AsyncCluster.variables)
    delete = blocking(AsyncCluster.delete)
    resources = blocking(AsyncCluster.resources)
    stack = blocking(AsyncCluster.stack)
    pause = blocking(AsyncCluster.pause)
    resume = blocking(AsyncCluster.resume)
    where = blocking(AsyncCluster.where)
    up = blocking(AsyncCluster.up)
    down = blocking(AsyncCluster.down)
    choose_frame = blocking(AsyncCluster.choose_frame)
    debug = blocking(AsyncCluster.debug)
    stop_debugging = blocking(AsyncCluster.stop_debugging)
    source = blocking(AsyncCluster.source)
    follow = blocking(AsyncCluster.follow)
    logs = blocking(AsyncCluster.logs)
    debug_log = blocking(AsyncCluster.debug_log)
    console = blocking(AsyncCluster.console)
    complete = blocking(AsyncCluster.complete)
    inspect = blocking(AsyncCluster.inspect)
    look = blocking(AsyncCluster.look)
    trace = blocking(AsyncCluster.trace)
    read_profile = blocking(AsyncCluster.read_profile)
    doctor = blocking(AsyncCluster.doctor)
    sync = blocking(AsyncCluster.sync)
    save = blocking(AsyncCluster.save)
    load = blocking(AsyncCluster.load)
    autosave = blocking(AsyncCluster.autosave)

    @property
    def start_seconds(self) -> float:
        return self.asynchronous.start_seconds

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.asynchronous.warnings


def start(nproc_per_node: int | str | None = None, nnodes: int | None = None, **options: Any) -> Cluster:
    """Start a cluster on ``nnodes`` nodes (default 1); options as in :meth:`AsyncCluster.start`."""
    return Cluster.start(nproc_per_node, nnodes, **options)


def attach(name: str | None = None) -> Cluster:
    """The running cluster called ``name``, or the newest one."""
    return Cluster.attach(name)


def list_clusters() -> list[Connection]:
    """The connection files of this user's running clusters, newest first."""
    return list(find.connections().values())
