"""Patches of the few torch.distributed functions with which a cell could take the world from jdist, or add to it.

Init and destroy of the world only print that there is nothing to do; in a job's script they print nothing. New groups
are recorded, so that a re-formed world has the same groups under the same names.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from jdist.core.errors import UsageError
from jdist.core.messages.membership import GroupSpec
from jdist.worker import process
from jdist.worker.compat import torch as torch_compat
from jdist.worker.groups import rebind
from jdist.worker.groups.formation import FOREVER
from jdist.worker.groups.gloo import remember_receives, waits
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.observe.call_log import OWN_FILES, CallLog
from jdist.worker.observe.main_thread import STORE_WAITS, WORK_WAITS

_BLOCKING_STORE_METHODS = ("wait", "get", "multi_get", "queue_pop", "barrier")


def install(groups: GroupRegistry) -> None:
    """Put the patches wherever torch.distributed's modules hold the originals; once, before user code runs."""
    if getattr(c10d.init_process_group, "is_jdist", False):
        raise RuntimeError("jdist's patches are installed in this process already")
    for in_cell in (_init_process_group, _destroy_process_group, _new_group, _split_group):
        name = in_cell.__name__.removeprefix("_")
        original = getattr(c10d, name)
        patched = _patched(original, in_cell, groups)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("torch.distributed") and vars(module).get(name) is original:
                setattr(module, name, patched)
    OWN_FILES.update({__file__, inspect.getfile(GroupRegistry), rebind.__file__, torch_compat.__file__})
    _mark_store_waits()
    waits.install()  # first: the frame that the next line adds is seen by worker/observe
    _mark_work_waits(groups.log)
    remember_receives()
    rebind.remember_ddp_modules(groups.log.check)
    torch_compat.name_checked_groups()
    groups.environment.install()
    groups.rpc.install()
    groups.log.install()


def _patched(original: Callable[..., Any], in_cell: Callable[..., Any], groups: GroupRegistry) -> Callable[..., Any]:
    """``original``; for a cell, ``in_cell(call, asked, groups)`` with the call and all arguments by name."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        if not groups.is_in_cell:
            if groups.why_unformed and in_cell is _init_process_group:
                raise UsageError(groups.why_unformed)
            if in_cell in _OF_THE_WORLD and groups.forget_inherited() and in_cell is _destroy_process_group:
                return None  # a forked child has no part in the world that it would destroy
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return in_cell(lambda: original(*bound.args, **bound.kwargs), bound.arguments, groups)

    patched.is_jdist = True  # type: ignore[attr-defined]
    return patched


def _init_process_group(_call: Callable[[], None], asked: dict[str, Any], groups: GroupRegistry) -> None:
    backend, rank, world_size = groups.world
    wanted = str(asked["backend"]).lower() if asked["backend"] is not None else None
    asked_rank = _number(asked, "rank", "RANK")
    asked_size = _number(asked, "world_size", "WORLD_SIZE")
    wrong = []
    if wanted is not None and not _backends(wanted) <= _backends(backend):
        wrong.append(f"backend {wanted!r}")
    if asked_rank not in {None, rank}:
        wrong.append(f"rank {asked_rank}")
    if asked_size not in {None, world_size}:
        wrong.append(f"world_size {asked_size}")
    if wrong:
        raise UsageError(
            f"init_process_group asks for {' and '.join(wrong)}, but this is rank {rank} of a world of {world_size} "
            f"that jdist has formed with backend {backend!r}. Ask for the same, leave the arguments out, or start a "
            "cluster of the other kind (start --backend … -n …)"
        )
    done = "nothing to do"
    if asked["timeout"] is not None:
        groups.set_world_timeout(asked["timeout"])
        done = f"its collectives fail after {asked['timeout'].total_seconds():g} s from now on"
    elif asked["store"] is not None or (asked["init_method"] or "env://") != "env://":
        done = "its own store is used instead of the one that was passed"
    if not process.is_job_script():
        print(f"init_process_group: the world of {world_size} ranks ({backend}) is already formed; {done}")


def _number(asked: dict[str, Any], name: str, variable: str) -> int | None:
    """The explicit argument, else the init_method's query, else torchrun's environment."""
    value = asked[name]
    if value is not None and value >= 0:
        return int(value)
    query = parse_qs(urlsplit(asked["init_method"] or "").query)
    text = query[name][0] if name in query else os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _backends(text: str) -> set[str]:
    """``"cpu:gloo,cuda:nccl"`` → {"gloo", "nccl"}."""
    return {part.rpartition(":")[2] for part in text.split(",")}


def _destroy_process_group(call: Callable[[], None], asked: dict[str, Any], groups: GroupRegistry) -> None:
    group = asked["group"]
    if group is None or group is dist.group.WORLD:
        if not process.is_job_script():
            print("destroy_process_group: jdist keeps the world formed for the next cell; nothing to do")
    else:
        call()
        groups.record_destroyed(group)


def _new_group(call: Callable[[], Any], asked: dict[str, Any], groups: GroupRegistry) -> Any:
    timeout = asked["timeout"].total_seconds() if asked["timeout"] is not None else 0.0
    asked["timeout"] = asked["timeout"] or FOREVER
    ranks = tuple(range(groups.world[2]) if asked["ranks"] is None else asked["ranks"])
    backend = None if asked["backend"] is None else str(asked["backend"])
    members = tuple(sorted(ranks)) if asked["sort_ranks"] else ranks
    spec = GroupSpec(members, backend, asked["group_desc"] or "", timeout=timeout)
    return groups.make_group(call, spec, is_local=asked["use_local_synchronization"])


def _split_group(call: Callable[[], Any], asked: dict[str, Any], groups: GroupRegistry) -> Any:
    splits = tuple(tuple(ranks) for ranks in asked["split_ranks"] or ())
    if asked["parent_pg"] is None or asked["parent_pg"] is dist.group.WORLD:
        return groups.make_group(call, GroupSpec((), None, asked["group_desc"] or "", splits))
    own = next((ranks for ranks in splits if groups.world[1] in ranks), ())
    return groups.make_group(call, GroupSpec(own), is_local=True)


_OF_THE_WORLD = (_init_process_group, _destroy_process_group)


def _mark_store_waits() -> None:
    """Give the store's blocking C++ methods a Python frame, by which worker/observe/main_thread recognises them."""
    for name in filter(partial(hasattr, dist.Store), _BLOCKING_STORE_METHODS):
        original = getattr(dist.Store, name)

        def wait(store: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            return _original(store, *args, **kwargs)

        wait.__name__, wait.__doc__ = name, original.__doc__
        wait.__code__ = wait.__code__.replace(co_name=name)
        STORE_WAITS.add(wait.__code__)
        setattr(dist.Store, name, wait)


def _mark_work_waits(log: CallLog) -> None:
    """Give ``Work.wait`` a Python frame, too: it shows which call the thread waits for."""
    original: Any = dist.Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return original(work, *args, **kwargs)
        except RuntimeError as e:
            log.record_failure(e)
            raise

    wait.__doc__ = original.__doc__
    WORK_WAITS.add(wait.__code__)
    setattr(dist.Work, "wait", wait)  # noqa: B010 - the stub's signature differs
