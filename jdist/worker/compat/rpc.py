"""What jdist uses of ``torch.distributed.rpc`` that torch keeps private.

Checked on torch 2.13.0. Where one of its names is absent, RPC is left to torch alone.
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable
from datetime import timedelta
from types import CodeType
from typing import Any

import torch.distributed as dist
from torch.distributed import rpc

from jdist.worker.compat.features import Feature

_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

_methods: dict[str, Any] = {}  # An agent's own methods, by their names.

_NUMBERS_USED = 2  # By each remote reference.

_RPC = Feature(
    "torch.distributed.rpc after an interrupt, or in a world that was formed again",
    {
        "torch.distributed.rpc": "_init_counter _init_counter_lock",
        "torch.distributed.rpc.api": "_all_gather_sequence_id _all_gather_sequence_id_to_states "
        "_cleanup_python_rpc_handler _delete_all_user_and_unforked_owner_rrefs _destroy_rref_context "
        "_get_current_rpc_agent _init_rpc_states _is_current_rpc_agent_set _reset_current_rpc_agent "
        "_set_and_start_rpc_agent",
        "torch.distributed.rpc.internal": "_run_function",
        "torch._C._distributed_rpc": "TensorPipeAgent _delete_all_user_and_unforked_owner_rrefs",
    }
    if rpc.is_available()
    else {},
)


def has_rpc() -> bool:
    """Whether this build of torch has RPC, and all by which jdist keeps it going."""
    return bool(rpc.is_available()) and not _RPC.absent


def current_agent() -> Any:
    """The agent of RPC in this process; None before ``init_rpc`` and after ``shutdown``."""
    if not has_rpc():
        return None
    from torch.distributed.rpc import api

    return api._get_current_rpc_agent() if api._is_current_rpc_agent_set() else None


def wrap_agent(wrap: _Wrapper, alone: _Wrapper) -> None:
    """Wrap the methods of agents that wait for other processes or for functions that run here.

    ``alone`` wraps the methods that start and join an agent's threads. They must not run in two threads at once: if
    both join the same thread, the second join may come when that thread's memory already belongs to a new thread. It
    then joins the new thread, and the process is aborted when that one is joined again by its owner.
    """
    from torch._C._distributed_rpc import TensorPipeAgent
    from torch.distributed.rpc import api

    agents: Any = TensorPipeAgent
    _methods.update(join=agents.join, shutdown=agents.shutdown)
    agents.join = wrap(agents.join)
    agents.shutdown = wrap(alone(agents.shutdown))
    api._set_and_start_rpc_agent = alone(api._set_and_start_rpc_agent)


def served_function() -> CodeType:
    """The code below which RPC runs a function that another process has called."""
    from torch.distributed.rpc import internal

    code: CodeType = internal._run_function.__code__
    return code


def raise_in_thread(ident: int, error: type[BaseException]) -> None:
    """Have a thread of this process raise as soon as it executes Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def forget_agent() -> None:
    """Empty RPC's state as ``shutdown`` does, also after one that failed, without waiting for anything."""
    from torch.distributed.rpc import api

    if api._is_current_rpc_agent_set():
        api._destroy_rref_context(True)
        api._cleanup_python_rpc_handler()
        api._reset_current_rpc_agent()


def restart_counts() -> None:
    """Have the next ``init_rpc`` meet under the first names, as it does in a process that has not called it before."""
    from torch.distributed.rpc import api

    api._all_gather_sequence_id.clear()
    api._all_gather_sequence_id_to_states.clear()
    with dist.rpc._init_counter_lock:
        dist.rpc._init_counter = 0


def replace_deletion(delete: Callable[..., None]) -> None:
    """Have ``shutdown`` call ``delete(original)``, where torch waits up to 100 s for the end of remote references.

    ``original`` takes another time.
    """
    from torch._C._distributed_rpc import _delete_all_user_and_unforked_owner_rrefs
    from torch.distributed.rpc import api

    api._delete_all_user_and_unforked_owner_rrefs = functools.partial(delete, _delete_all_user_and_unforked_owner_rrefs)


def skip_reference_numbers(count: int) -> None:
    """Number the remote references that this process will make from ``count`` on, once RPC is initialised.

    Another process of the same rank may have used the numbers before, and its peers remember them.
    """
    from torch.distributed.rpc import api

    original: Any = api._init_rpc_states

    def init(agent: Any) -> None:
        original(agent)
        api._init_rpc_states = original
        for _ in range(count // _NUMBERS_USED):
            rpc.RRef(None)

    api._init_rpc_states = init


# ---------------------------------------------------------------- barriers of shutdown
#
# Each has a number, by which its keys in the store are named. C++ counts them and shows the count nowhere else.


def count_barriers() -> int:
    """How many barriers this process has begun, with those that it takes to find out."""
    return max(_begin_barriers())


def advance_barriers(count: int, to: int) -> None:
    """Begin more barriers, until there were ``to`` where there have been ``count``."""
    for number in range(count + 1, to + 1):
        _counting_agent()[1].set(f"shutdown/PROCESS_COUNT_ID_{number}", "1")  # not the last process: it gives up
        if _begin_barriers() != {number}:
            raise RuntimeError(f"barrier {number} of RPC cannot be passed over")


def _begin_barriers() -> set[int]:
    """Have an agent without peers begin barriers, and give up where it is not the last one; their numbers."""
    agent, store = _counting_agent()
    before = set(store.list_keys())
    with contextlib.suppress(RuntimeError):  # it has given up
        _methods["join"](agent, True)
    keys = (key.rpartition("ACTIVE_CALLS_ID_") for key in set(store.list_keys()) - before)
    return {int(number) for _, separator, number in keys if separator}


@functools.cache
def _counting_agent() -> tuple[Any, dist.HashStore]:
    """An agent without peers, and its store. It lives on: destroying one may wait for threads of others."""
    from torch.distributed.rpc import TensorPipeAgent, TensorPipeRpcBackendOptions

    store = dist.HashStore()
    agent: Any = TensorPipeAgent(store, "jdist", 0, 1, TensorPipeRpcBackendOptions(num_worker_threads=1), {}, [])
    _methods["shutdown"](agent)  # else its threads poll
    store.set_timeout(timedelta(milliseconds=1))
    return agent, store
