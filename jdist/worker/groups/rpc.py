"""``torch.distributed.rpc`` in a rank: ends what waits in it, so that ``init_rpc`` can be called again.

RPC waits in C++ for answers, for all processes to shut down, and for functions that other processes have called here. A
signal ends none of that. The shutdown of the agent fails all that is pending; it waits itself for functions that run
here, so it is called on a thread of its own, and whoever waits for it on the main thread is let go. Where a cell has
the agent shut down at the same time, one of the two waits for the other: the agent cannot be shut down twice at once.

torch counts calls of ``init_rpc`` and barriers of ``shutdown`` by process and for life, and names keys in the store by
these counts. Where one rank has a fresh process or has given up half-way, the counts are made equal again.
"""

import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Struct

from jdist.worker.compat import rpc as rpc_compat

_log = logging.getLogger("jdist.worker")

_GIVE_UP = 0.5  # Seconds for a method of an ended agent to return; one that does not is stuck in the user's function.

_DELETION = timedelta(seconds=100)  # torch's own time for the end of remote references.
_NO_DELETION = timedelta(seconds=0.2)
_REFERENCES = 10_000  # Numbers of remote references that are left to the processes of one rank, for each generation.


class RpcState(Struct, frozen=True):
    """What RPC is in one process before a generation is formed."""

    workers: int = 0  # Number of processes that take part in it, 0: it is not initialised.
    was_ended: bool = False  # It was ended here, and not initialised again.
    barriers: int = 0  # How many barriers of ``shutdown`` have been begun.


class RpcStopped(Exception):
    """Raised in a function that another rank has called by RPC when RPC is ended here."""


class RpcAgent:
    """This process's agent of RPC, if a cell has initialised one; callable from any thread."""

    def __init__(self) -> None:
        self._ended: Any = None  # The agent that was ended last.
        self._was_ended = False  # Whether one was ended since the last generation.
        self._calls: dict[threading.Event, threading.Thread] = {}  # Calls of an agent's method by the main thread.
        self._newest: weakref.ref[Any] | None = None  # The agent that was started or shut down last, and
        self._turn = threading.Lock()  # what a thread holds that does so.
        self._lock = threading.Lock()  # guards the two above
        self._is_fresh = True  # No generation has been formed in this process.
        self._has_been_shut_down = False  # Here, or in a process that takes part.
        self._is_counted = True  # Whether this is known:
        self._barriers = 0

    def install(self) -> None:
        """Let the main thread go from waits in the agent when RPC is ended; once a process."""
        if rpc_compat.has_rpc():
            rpc_compat.wrap_agent(self._released, self._alone)
            rpc_compat.replace_deletion(self._delete_references)

    def state(self) -> RpcState:
        """The state that this rank sends to the other ranks."""
        agent = rpc_compat.current_agent()
        workers = len(agent.get_worker_infos()) if agent is not None and agent is not self._ended else 0
        if not self._is_counted:
            for call in tuple(self._calls.values()):
                if call.is_alive():  # else an interrupt came just before it was started
                    call.join(_GIVE_UP)
            self._barriers, self._is_counted = rpc_compat.count_barriers(), True
        return RpcState(workers, self._was_ended and not workers, self._barriers)

    def end(self) -> None:
        """Fail everything that waits in RPC, here and for this process; nothing without an agent."""
        agent = rpc_compat.current_agent()
        if agent is None or agent is self._ended:
            return
        self._ended, self._was_ended = agent, True
        for wait in tuple(self._calls):
            wait.set()
        threading.Thread(target=_shut_down, args=(agent,), name="jdist-rpc", daemon=True).start()
        served = rpc_compat.served_function()
        for ident, innermost in sys._current_frames().items():
            frame: Any = innermost
            while frame is not None and frame.f_code is not served:
                frame = frame.f_back
            if frame is not None:
                rpc_compat.raise_in_thread(ident, RpcStopped)

    def leave(self) -> None:
        """Remove an ended agent from torch's state."""
        if self._ended is not None:
            if rpc_compat.current_agent() is self._ended:
                rpc_compat.forget_agent()
            self._ended = None

    def agree(self, states: dict[int, RpcState], rank: int, generation: int) -> tuple[str, ...]:
        """Agree with all ranks, whose states before the new generation are known; notices for the user.

        RPC goes on if none of the processes that take part in it has left it.
        """
        if not rpc_compat.has_rpc():
            return ()
        using = [state.workers for state in states.values() if state.workers]
        is_over = any(s.was_ended for s in states.values()) or max(using, default=0) > len(using)
        if is_over:
            self.end()
            self.leave()
        if is_over or not using:
            rpc_compat.restart_counts()
        barriers = max(state.barriers for state in states.values())
        if self._is_fresh and (is_over or barriers):
            rpc_compat.skip_reference_numbers(generation * _REFERENCES)
        self._has_been_shut_down = self._has_been_shut_down or is_over or barriers > 0
        self._is_fresh = False
        rpc_compat.advance_barriers(self._barriers, barriers)
        self._barriers, self._was_ended = barriers, False
        first = min((r for r, state in states.items() if state.workers or state.was_ended), default=-1)
        return ("RPC was shut down on every rank; call rpc.init_rpc again",) if is_over and rank == first else ()

    def _released(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``original``, a method of the agent, which the main thread leaves as soon as RPC is ended."""

        @functools.wraps(original)
        def call(agent: Any, *args: Any, **kwargs: Any) -> None:
            self._is_counted, self._has_been_shut_down = False, True
            if threading.current_thread() is not threading.main_thread():
                original(agent, *args, **kwargs)
            else:
                self._wait_for(functools.partial(original, agent, *args, **kwargs), agent)

        return call

    def _alone(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``original``, a function of an agent, which runs in one thread at a time for each agent."""

        @functools.wraps(original)
        def call(agent: Any, *args: Any, **kwargs: Any) -> None:
            with self._turn_of(agent):
                original(agent, *args, **kwargs)

        return call

    def _turn_of(self, agent: Any) -> threading.Lock:
        with self._lock:
            if self._newest is None or self._newest() is not agent:
                self._newest, self._turn = weakref.ref(agent), threading.Lock()
            return self._turn

    def _delete_references(self, original: Callable[[timedelta], None], timeout: timedelta = _DELETION) -> None:
        """Delete remote references; does not wait if RPC was shut down in a process, as that confirms no deletion."""
        delete = functools.partial(original, _NO_DELETION if self._has_been_shut_down else timeout)
        self._wait_for(delete, rpc_compat.current_agent())

    def _wait_for(self, function: Callable[[], object], agent: Any) -> None:
        """Call it on a thread of its own, until it returns or RPC is ended; not at all if ``agent`` was ended."""
        raised: list[Exception] = []

        def run() -> None:
            try:
                if agent is not self._ended:  # looked up here: whoever ends it from now on finds this call
                    function()
            except Exception as e:
                raised.append(e)
            is_over.set()
            del self._calls[is_over]

        is_over = threading.Event()
        self._calls[is_over] = thread = threading.Thread(target=run, name="jdist-rpc", daemon=True)
        thread.start()
        is_over.wait()
        if raised:
            raise raised[0]


def _shut_down(agent: Any) -> None:
    try:
        agent.shutdown()
    except Exception as e:  # its connections are broken, which is why it is ended
        _log.info("ending RPC: %s", e)
