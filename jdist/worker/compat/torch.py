"""The one place where jdist uses what torch keeps private: each access is a small function or a named constant.

Checked on torch 2.13.0. What a torch without one of these names costs is said by the features below.
"""

import ctypes
import functools
import gc
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from jdist.worker.compat.features import Feature

_C10D = "torch.distributed.distributed_c10d"

# Not guarded: without these names, no world is formed, and what torch says of them is the reason that is reported.
_WORLD = Feature(
    "forming a world",
    {
        _C10D: "_unregister_all_process_groups _update_default_pg",
        f"{_C10D}:_world": "group_count pg_backend_config pg_group_ranks pg_map pg_names pg_to_tag tags_to_pg",
    },
)
_WAITS = Feature(
    "freeing a rank that waits in new_group for others", {_C10D: "_new_process_group_helper _store_based_barrier"}
)
_NAMED = Feature("taking groups over to another process of a rank", {_C10D: "_resolve_process_group"})
_STORE = Feature(
    "init_process_group in children of a rank",
    {"torch.distributed.rendezvous": "_create_c10d_store _torchelastic_use_agent_store"},
)
_DEFAULT = Feature("the reason why there is no world, in torch's errors", {_C10D: "_get_default_group"})
_TIMEOUT = Feature("changing the timeout of collectives", {_C10D: "_set_pg_timeout"})
_ABORT = Feature("freeing ranks that wait in NCCL", {_C10D: "_abort_process_group"})
_CHECKED = Feature(
    "seeing the calls of groups that TORCH_DISTRIBUTED_DEBUG=DETAIL checks", {_C10D: "_create_process_group_wrapper"}
)
_RECORDER = Feature("seeing what C++ waits for", {"torch._C._distributed_c10d": "_dump_fr_trace"})
_FUNCTIONAL = Feature("seeing functional collectives", {"torch.distributed": "_functional_collectives"})
_SUBCLASSES = Feature("seeing tensors' subclasses as plain tensors", {"torch._C": "DisableTorchFunctionSubclass"})
_FUTURES = Feature("ending waits in callbacks of futures", {"torch._C": "Future"})
_DEVICES = Feature(
    "choosing the device on which values are compared", {"torch.distributed:ProcessGroup": "_device_types"}
)
_DDP = Feature(
    "DistributedDataParallel in a world that was formed again",
    {
        "torch.nn.parallel:DistributedDataParallel": "_build_debug_param_to_name_mapping _build_params_for_reducer "
        "_ddp_init_helper _update_process_group",
        "torch._C._distributed_c10d:Reducer": "_set_static_graph",
        "torch._C._distributed_c10d:Logger": "_set_static_graph",
    },
)

STORE_BARRIER = "_store_based_barrier"  # Name of the Python function in which new_group waits for the other ranks.
GROUP_HELPER = "_new_process_group_helper"  # Makes a group in C++, where it waits for the peers' addresses in a store.
C10D_FILE = "distributed_c10d.py"

LOST_CONNECTION = (
    "connection closed by peer",
    "connection reset by peer",
    "application timeout caused pair closure",
    "socket closed",
    "broken pipe",
    "connection timed out",
    "no route to host",
    "network is unreachable",
)
"""What errors of gloo and of the store say, in lower case, where a connection to another process has ended."""
_BROKEN = (
    *LOST_CONNECTION,
    "timed out waiting",  # gloo ends the connection under an operation whose time is up
    "failed to pass monitoredbarrier",
)

_REGISTRIES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg")


# ---------------------------------------------------------------- registries of process groups


def group_name(group: Any) -> str:
    """torch's name of a group, "" if it is not registered (any more)."""
    return str(c10d._world.pg_names.get(group, ""))


def world_name() -> str:
    """torch's name of the default group, "" while there is none."""
    return group_name(dist.group.WORLD) if dist.group.WORLD is not None else ""


def groups() -> list[tuple[ProcessGroup, str, tuple[int, ...]]]:
    """Each group that this process knows: the object, torch's name, and the global ranks in the group's own order."""
    ranks = c10d._world.pg_group_ranks
    return [(g, str(name), tuple(ranks.get(g, ()))) for g, name in list(c10d._world.pg_names.items())]


@_NAMED.needed_by
def resolve_group(name: Any) -> ProcessGroup:
    """The group of torch's name."""
    return c10d._resolve_process_group(name)


def world_store() -> Any:
    """The store of the default group, in which the groups made later meet."""
    world: Any = dist.group.WORLD
    return c10d._world.pg_map[world][1]


def set_world_store(store: Any) -> None:
    """Have groups made from now on meet in ``store``."""
    world: Any = dist.group.WORLD
    c10d._world.pg_map[world] = (c10d._world.pg_map[world][0], store)


@_STORE.skips
def replace_store_maker(make: Callable[..., Any]) -> None:
    """Have a rendezvous by ``env://`` or ``tcp://`` call ``make(original, host, port, rank, world_size, timeout)``.

    ``original`` takes the other arguments, and has rank 0 hold the store, whatever torchrun's variables say.
    """
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]  # torch.distributed has a function of that name
    rendezvous._torchelastic_use_agent_store = lambda: False
    rendezvous._create_c10d_store = functools.partial(make, rendezvous._create_c10d_store)


def group_count() -> int:
    """torch names the next group by this number."""
    return c10d._world.group_count


def set_group_count(count: int) -> None:
    """Let torch go on naming groups from this number."""
    c10d._world.group_count = count


def forget_groups() -> None:
    """Empty the registries as destroy_process_group does; also after a failed shutdown, or an init that failed.

    An init that fails half-way has counted a group, so that the next world would have another name than on its peers.
    """
    c10d._update_default_pg(None)
    for registry in _REGISTRIES:
        getattr(c10d._world, registry).clear()
    c10d._unregister_all_process_groups()
    c10d._world.group_count = 0


_default_group = getattr(c10d, "_get_default_group", None)


@_DEFAULT.skips
def refuse_default_group(reason: str) -> None:
    """Have whatever needs the default group raise ValueError with this reason; "": work as usual again."""

    def refused() -> ProcessGroup:
        raise ValueError(reason)

    for name, module in list(sys.modules.items()):
        held = vars(module).get("_get_default_group") if name.startswith("torch.") else None
        if held is not None and (held is _default_group or getattr(held, "__name__", "") == refused.__name__):
            module._get_default_group = refused if reason else _default_group  # type: ignore[attr-defined]


@_TIMEOUT.needed_by
def set_timeout(group: Any, timeout: timedelta) -> None:
    """Set the timeout of a group's collectives, from now on."""
    c10d._set_pg_timeout(timeout, group)


def device_types(group: Any) -> set[str]:
    """The kinds of device whose tensors the group's backend takes."""
    return {d.type for d in getattr(group, "_device_types", ())}


# ---------------------------------------------------------------- ending what is blocked

# What ``Work.get_future`` returns; the base of torch.futures.Future.
Future: Any = getattr(torch._C, "Future", torch.futures.Future)


def has_nccl() -> bool:
    """Whether a group of NCCL's is registered."""
    return any("nccl" in str(backends) for backends in list(c10d._world.pg_backend_config.values()))


@_ABORT.skips
def abort_nccl() -> None:
    """Abort all NCCL communicators at once (one by one, NCCL deadlocks: pytorch#119797), and wait until it is done.

    It also empties the registries of groups.
    """
    if dist.group.WORLD is not None and has_nccl():
        c10d._abort_process_group()


def reset_cuda_graphs() -> int:
    """Reset the CUDA graphs of this process; returns how many there were.

    NCCL does not end a communicator before the graphs are gone that have captured its collectives.
    """
    graphs = [found for found in gc.get_objects() if issubclass(type(found), torch.cuda.CUDAGraph)]
    for graph in graphs:
        graph.reset()
    return len(graphs)


_RECV_ABORT = "_ZN4c10d16ProcessGroupGloo8RecvWork5abortEv"
_RECV_VTABLE = "_ZTVN4c10d16ProcessGroupGloo8RecvWorkE"
_HEADER = object.__basicsize__


def abort_receive(work: Any) -> None:
    """Wake a gloo receive, which then returns *without* data and without an exception.

    Calls ``ProcessGroupGloo::RecvWork::abort``, which torch does not hand to Python. An object of any other C++ class
    (its vtable is compared) is left alone.
    """
    library = _torch_cpu()
    held = ctypes.c_void_p.from_address(id(work) + _HEADER).value if library is not None else None
    if library is None or not held:
        return
    vtable = ctypes.addressof(ctypes.c_char.in_dll(library, _RECV_VTABLE)) + 2 * ctypes.sizeof(ctypes.c_void_p)
    if ctypes.c_void_p.from_address(held).value == vtable:
        abort = library[_RECV_ABORT]
        abort.argtypes, abort.restype = [ctypes.c_void_p], None
        abort(held)


@functools.cache
def _torch_cpu() -> ctypes.CDLL | None:
    """The library that holds the two symbols, or None where a build of torch does not export them."""
    if sys.implementation.name != "cpython":
        return None
    try:
        library = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so"))
        ctypes.c_char.in_dll(library, _RECV_VTABLE)
        library[_RECV_ABORT]
    except (OSError, ValueError, AttributeError):
        return None
    return library


# ---------------------------------------------------------------- torch's own log

_ERROR = 2  # c10's level of errors; warnings are 1.


@functools.cache
def _log_level() -> ctypes.c_int | None:
    """The level from which on torch's C++ code logs, or None where a build of torch does not export it."""
    try:
        library = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


_level_before: list[int] = []


def mute_warnings() -> None:
    """Have torch's C++ code log no warnings: it reports each connection that jdist ends, with a stack of 20 lines."""
    level = _log_level()
    if level is not None and not _level_before:
        _level_before.append(level.value)
        level.value = max(level.value, _ERROR)


def unmute_warnings() -> None:
    """Have it log warnings again, as before."""
    level = _log_level()
    if level is not None and _level_before:
        level.value = _level_before.pop()


# ---------------------------------------------------------------- observation


def flight_record(*, with_entries: bool) -> bytes:
    """A pickled dump of the flight recorder, without stacks: they would import torch._inductor (2 s, 70 MB).

    Without entries, its counters alone; empty where this build of torch has no recorder.
    """
    from torch._C import _distributed_c10d as bindings

    dump = getattr(bindings, "_dump_fr_trace", None)
    return pickle.dumps({}) if dump is None else bytes(dump(with_entries, False, False))


def nccl_flight_record(*, with_entries: bool) -> bytes:
    """The same of NCCL, which has a recorder of its own; empty where this build of torch has no NCCL.

    With entries it asks CUDA for the state of events. Raises RuntimeError if the CUDA context is lost.
    """
    from torch._C import _distributed_c10d as bindings

    dump = getattr(bindings, "_dump_nccl_trace", None)
    if dump is None or not has_nccl():
        return pickle.dumps({})
    if not with_entries:
        return bytes(dump(False, False, False))
    with _gpu():  # a thread's own is the first, which is another rank's: its context would be made here, too
        return bytes(dump(True, False, False))


def read_flight_record(dump: bytes) -> dict[str, Any]:
    """The content of a dump made by this process."""
    found: dict[str, Any] = pickle.loads(dump)
    return found


_gpu: Callable[[], AbstractContextManager[Any]] = nullcontext


def use_gpu(device: torch.device) -> None:
    """NCCL's collectives are on this GPU from now on."""
    global _gpu  # noqa: PLW0603 - a process has one
    _gpu = functools.partial(torch.cuda.device, device)


def is_nccl_alone(group: Any) -> bool:
    """Whether a group has no other backend than NCCL."""
    parts = str(c10d._world.pg_backend_config.get(group, "")).split(",")
    return {part.rpartition(":")[2] for part in parts} == {"nccl"}


try:
    functional_collectives = importlib.import_module("torch.distributed._functional_collectives")
except ImportError:
    functional_collectives = ModuleType("none")


def checks_calls() -> bool:
    """Whether TORCH_DISTRIBUTED_DEBUG is DETAIL: ranks compare each collective's arguments before they begin it."""
    return dist.get_debug_level() == dist.DebugLevel.DETAIL


@_CHECKED.skips
def name_checked_groups() -> None:
    """Have a group whose calls are checked (:func:`checks_calls`) keep its name in the flight recorder.

    torch names the backend that compares the arguments, and not the one within it whose collectives are recorded.
    """
    wrap = c10d._create_process_group_wrapper

    @functools.wraps(wrap)
    def named(wrapped_pg: Any, store_prefix: Any, store: Any, rank: int, world_size: int, *args: Any, **kw: Any) -> Any:
        holder = dist.ProcessGroup(store, rank, world_size)
        holder._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, wrapped_pg)
        holder._set_group_name(store_prefix)  # which is the group's name
        return wrap(wrapped_pg, store_prefix, store, rank, world_size, *args, **kw)

    c10d._create_process_group_wrapper = named


def names_of_functional_collectives() -> tuple[str, ...]:
    """The public ones, without those that torch.compile alone puts in the place of collectives in place."""
    module = functional_collectives
    return tuple(
        name
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and "group" in inspect.signature(f).parameters
        if not name.startswith("_") and not name.endswith("_inplace")
    )


# A context within which a tensor subclass's own ``__torch_function__`` is not called.
plain_tensors: Callable[[], AbstractContextManager[Any]] = getattr(
    torch._C, "DisableTorchFunctionSubclass", nullcontext
)


def compile_as(function: Any, original: Callable[..., Any]) -> None:
    """Have torch.compile look through ``function`` and put its own function in the original's place."""
    function._torchdynamo_inline = original


# ---------------------------------------------------------------- storages


def storage_id(storage: torch.UntypedStorage) -> int:
    """The same for all Python objects of one storage."""
    return int(storage._cdata)


def untyped_storage(storage: Any) -> torch.UntypedStorage:
    """What a typed storage, as torch's own pickles of tensors refer to it, is made of."""
    found: torch.UntypedStorage = storage._untyped_storage
    return found


def typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """The storage as torch's own pickles of tensors refer to it."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


# ---------------------------------------------------------------- DistributedDataParallel


@_DDP.needed_by
def move_ddp(ddp: Any, group: ProcessGroup) -> None:
    """Have a DDP module go on with another process group."""
    ddp._update_process_group(group)


def has_comm_hook(ddp: Any) -> bool:
    """Whether a communication hook was registered."""
    return bool(getattr(ddp, "_comm_hooks", None))


@_DDP.needed_by
def make_new_reducer(ddp: Any) -> None:
    """Give a DDP module a new reducer, with the buckets of its first iteration."""
    parameters, expect_sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()


def breaks_group(error: BaseException) -> bool:
    """Whether the error of a collective means that its group has lost connections, and can be used no more."""
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _BROKEN)


# ---------------------------------------------------------------- training steps that were cut off

_FSDP1 = Feature(
    "FullyShardedDataParallel after a step that was interrupted",
    {
        "torch.distributed.fsdp._flat_param:FlatParamHandle": "reshard post_reshard",
        "torch.distributed.fsdp._common_utils": "HandleTrainingState TrainingState",
    },
)
_PIPELINES = Feature(
    "a pipeline after a step that was interrupted", {"torch.distributed.pipelining.schedules": "_PipelineSchedule"}
)


def end_steps() -> None:
    """Set every module of FSDP1 (sharded, and in no pass) and every pipeline back to the beginning of a step.

    FSDP1 (FullyShardedDataParallel) records where it is in a step, and resets that only at the end of a backward. A
    flat parameter whose all_gather was cut off counts as gathered, so that its rank would leave out the next one and
    train on uninitialized memory. A pipeline's schedule keeps the losses of microbatches.
    """
    sharding = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    pipelining = sys.modules.get("torch.distributed.pipelining.schedules")
    wrapper: Any = sharding.FullyShardedDataParallel if sharding is not None else ()
    schedule: Any = getattr(pipelining, "_PipelineSchedule", ())
    classes = tuple(c for c in (wrapper, schedule) if c != ())
    for found in [each for each in gc.get_objects() if issubclass(type(each), classes)] if classes else []:
        if not issubclass(type(found), wrapper):
            found._internal_losses.clear()
        elif getattr(found, "_is_root", None) is not None:  # it has been in a step
            _end_step(found)


@_FSDP1.skips
def _end_step(state: Any) -> None:
    from torch.distributed.fsdp._common_utils import HandleTrainingState, TrainingState

    state.training_state = TrainingState.IDLE
    if state._is_root:
        state._post_backward_callback_queued = False
        state._exec_order_data.next_iter()
    handle = state._handle
    if handle is None:
        return
    handle._training_state = HandleTrainingState.IDLE
    handle._ran_pre_backward_hook = handle._needs_pre_backward_unshard = handle._prefetched = False
    handle._post_forward_index = None
    parameter = handle.flat_param
    hooked = parameter.__dict__.pop("_post_backward_hook_state", None)
    if hooked is not None:
        hooked[-1].remove()
    parameter._post_backward_called = False
    handle.reshard(handle.uses_sharded_strategy)
    handle.post_reshard()
    if "_saved_grad_shard" in parameter.__dict__:
        parameter.grad = parameter.__dict__.pop("_saved_grad_shard")
    elif parameter.grad is not None and parameter.grad.shape != parameter.shape:
        parameter.grad = None  # of the whole parameter, not reduced
