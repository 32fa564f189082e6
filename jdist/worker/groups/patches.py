"""Patches of the few torch.distributed functions with which a cell could take the world from jdist, or add to it.

``init_process_group`` and ``destroy_process_group`` of the world only print in a cell that there is nothing to do,
since jdist owns the world; ``new_group`` and ``split_group`` are recorded, so that a re-formed world has the same
groups under the same names.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from jdist.core.errors import UsageError
from jdist.core.messages.groups import GroupSpec
from jdist.worker.gloo.connections import remember_receives
from jdist.worker.groups.formation import FOREVER
from jdist.worker.groups.rebind import remember_ddp_modules
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.observe.frames import STORE_WAITS

_BLOCKING_STORE_METHODS = ("wait", "get", "multi_get", "queue_pop", "barrier")


def install(groups: GroupRegistry) -> None:
    """Put the patches wherever torch.distributed's modules hold the originals; once, before user code runs."""
    if getattr(c10d.init_process_group, "is_jdist", False):
        raise RuntimeError("jdist's patches are installed in this process already")
    wraps: dict[str, Callable[[Any, GroupRegistry], Any]] = {
        "init_process_group": _wrap_init,
        "destroy_process_group": _wrap_destroy,
        "new_group": _wrap_new_group,
        "split_group": _wrap_split_group,
    }
    for name, wrap in wraps.items():
        original = getattr(c10d, name)
        wrapper = functools.wraps(original)(wrap(original, groups))
        wrapper.is_jdist = True  # type: ignore[attr-defined]
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("torch.distributed") and vars(module).get(name) is original:
                setattr(module, name, wrapper)
    _mark_store_waits()
    remember_receives()
    remember_ddp_modules()
    groups.log.install()


def _arguments(signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


# ---------------------------------------------------------------- the world


def _wrap_init(original: Callable[..., None], groups: GroupRegistry) -> Callable[..., None]:
    signature = inspect.signature(original)

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not groups.is_in_cell:
            original(*args, **kwargs)
            return
        _check_agrees(_arguments(signature, args, kwargs).arguments, groups)
        backend, _rank, world_size = groups.world
        print(f"init_process_group: the world of {world_size} ranks ({backend}) is already formed; nothing to do")

    return init_process_group


def _check_agrees(asked: dict[str, Any], groups: GroupRegistry) -> None:
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


def _wrap_destroy(original: Callable[..., None], groups: GroupRegistry) -> Callable[..., None]:
    def destroy_process_group(group: Any = None) -> None:
        if not groups.is_in_cell:
            original(group)
        elif group is None or group is dist.group.WORLD:
            print("destroy_process_group: jdist keeps the world formed for the next cell; nothing to do")
        else:
            original(group)
            groups.record_destroyed(group)

    return destroy_process_group


# ---------------------------------------------------------------- groups


def _wrap_new_group(original: Callable[..., Any], groups: GroupRegistry) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        if not groups.is_in_cell:
            return original(*args, **kwargs)
        bound = _arguments(signature, args, kwargs)
        a = bound.arguments
        a["timeout"] = a["timeout"] or FOREVER
        ranks = tuple(range(groups.world[2]) if a["ranks"] is None else a["ranks"])
        with groups.making_group() as new_listeners:
            group = original(*bound.args, **bound.kwargs)
            listeners = new_listeners()
        if a["use_local_synchronization"]:
            groups.record_local_group(ranks)
        else:
            backend = None if a["backend"] is None else str(a["backend"])
            spec = GroupSpec(tuple(sorted(ranks)) if a["sort_ranks"] else ranks, backend, a["group_desc"] or "")
            groups.record_group(spec, group, listeners)
        return group

    return new_group


def _wrap_split_group(original: Callable[..., Any], groups: GroupRegistry) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def split_group(*args: Any, **kwargs: Any) -> Any:
        if not groups.is_in_cell:
            return original(*args, **kwargs)
        a = _arguments(signature, args, kwargs).arguments
        with groups.making_group() as new_listeners:
            group = original(*args, **kwargs)
            listeners = new_listeners()
        splits = tuple(tuple(ranks) for ranks in a["split_ranks"] or ())
        if a["parent_pg"] is None or a["parent_pg"] is dist.group.WORLD:
            groups.record_group(GroupSpec((), None, a["group_desc"] or "", splits), group, listeners)
        else:
            groups.record_local_group(next((s for s in splits if groups.world[1] in s), ()))
        return group

    return split_group


# ---------------------------------------------------------------- waits at a store


def _mark_store_waits() -> None:
    """Give the store's blocking C++ methods a Python frame, by which worker/observe/frames recognises them."""
    for name in _BLOCKING_STORE_METHODS:
        original = getattr(dist.Store, name, None)
        if original is not None:
            wrapper = _with_frame(original)
            wrapper.__name__ = name
            wrapper.__doc__ = original.__doc__
            wrapper.__code__ = wrapper.__code__.replace(co_name=name)
            STORE_WAITS.add(wrapper.__code__)
            setattr(dist.Store, name, wrapper)


def _with_frame(original: Any) -> Any:
    def wait(store: Any, *args: Any, **kwargs: Any) -> Any:
        return original(store, *args, **kwargs)

    return wait
