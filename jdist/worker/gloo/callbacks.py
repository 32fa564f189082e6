"""Waits outside the main thread, such as those in callbacks of futures, made so that they can be ended.

A gloo group has two threads, which run its collectives and then what ``future.then`` was given. If callbacks wait for
further collectives on both, nothing is run any more: PowerSGD's communication hook does that as soon as there are two
buckets (torch 2.13, also without jdist). No end of a connection reaches a collective that has not begun. So such a
wait ends on request; its thread goes on to the collectives that are queued, and these fail.
"""

import functools
import threading
from typing import Any

import torch.distributed as dist

from jdist.worker.compat.torch import Future, compile_as
from jdist.worker.observe.call_log import OWN_FILES
from jdist.worker.observe.main_thread import TRANSPARENT

_ENDED = "Connection closed by peer: the run was ended while a callback waited for this collective"


class CallbackWaits:
    """The waits of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[threading.Event] = set()
        self._is_over = False
        self.generation = 0  # Counts the calls of `resume`.

    def install(self) -> None:
        """Put stand-ins in place of the two methods that wait, once a process, before user code runs."""
        wait_for_future, wait_for_work = Future.wait, dist.Work.wait
        main = threading.main_thread().ident

        @functools.wraps(wait_for_future)
        def wait(future: Any) -> Any:
            if threading.get_ident() != main:
                self._wait(future)
            return wait_for_future(future)

        @functools.wraps(wait_for_work)
        def wait_work(work: Any, *timeout: Any, **options: Any) -> Any:
            if threading.get_ident() != main and not timeout and not options:
                try:
                    future = work.get_future()
                except RuntimeError:  # a send or receive has none; it does not wait for one of the two threads
                    return wait_for_work(work)
                self._wait(future)
            return wait_for_work(work, *timeout, **options)

        classes: Any = (Future, dist.Work)
        stand_ins: Any = (wait, wait_work)
        for waited, stand_in in zip(classes, stand_ins, strict=True):
            compile_as(stand_in, waited.wait)
            TRANSPARENT.add(stand_in.__code__)
            waited.wait = stand_in
        OWN_FILES.add(__file__)

    def _wait(self, future: Any) -> None:
        if future.done():
            return
        woken = threading.Event()
        with self._lock:
            if self._is_over:
                raise RuntimeError(_ENDED)
            self._waiting.add(woken)
        try:
            future.add_done_callback(lambda _: woken.set())
            woken.wait()
        finally:
            with self._lock:
                self._waiting.discard(woken)
        if not future.done():
            raise RuntimeError(_ENDED)

    def end(self, generation: int) -> None:
        """End the current waits, and each later one at once: the generation's connections have been ended.

        Does nothing if that generation has been left: the waits are those of the next one's formation then.
        """
        with self._lock:
            if generation != self.generation:
                return
            self._is_over = True
            for woken in self._waiting:
                woken.set()

    def resume(self) -> None:
        """The generation has been left."""
        with self._lock:
            self._is_over = False
            self.generation += 1


waits = CallbackWaits()
