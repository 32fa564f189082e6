"""Wrappers around the few torch.distributed functions with which a cell could take the world from jdist, or add to it.

``init_process_group`` and ``destroy_process_group`` of the world do nothing in a cell but say so, since jdist owns the
world; ``new_group`` and ``split_group`` are noted, so that a re-formed world has the same groups under the same names.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from jdist.core.errors import UsageError
from jdist.core.messages.groups import GroupSpec
from jdist.worker.gloo.connections import STORE_WAITS, Endpoint, watch_recv_any
from jdist.worker.groups.rebind import watch_ddp

FOREVER = timedelta(days=1)
"""torch's own timeout for collectives: jdist's deadlines come first, and know who is missing."""
_BLOCKING_STORE_METHODS = ("wait", "get", "multi_get", "queue_pop", "barrier")


class Held(Protocol):
    """What the wrappers ask of whoever holds the world."""

    @property
    def is_in_cell(self) -> bool:
        """Whether a world is held and this thread is not the one that forms it."""

    @property
    def held(self) -> tuple[str, int, int]:
        """Backend, rank and world_size."""

    def making(self) -> AbstractContextManager[Callable[[], set[Endpoint]]]:
        """A cell makes a group; gives where this rank has begun to listen since."""

    def made(self, spec: GroupSpec, group: Any, listeners: set[Endpoint]) -> None:
        """A cell made a group."""

    def made_locally(self, ranks: tuple[int, ...]) -> None:
        """A cell made a group that only its members know of."""

    def destroyed(self, group: Any) -> None:
        """A cell destroyed a group."""


def install(held: Held) -> None:
    """Put the wrappers wherever torch.distributed's modules hold the originals, once a process."""
    from torch.distributed import distributed_c10d as c10d

    if getattr(c10d.init_process_group, "is_jdist", False):
        raise RuntimeError("jdist's wrappers are installed in this process already")
    wraps: tuple[tuple[Any, Callable[[Any, Held], Any]], ...] = (
        (c10d.init_process_group, _wrap_init),
        (c10d.destroy_process_group, _wrap_destroy),
        (c10d.new_group, _wrap_new_group),
        (c10d.split_group, _wrap_split_group),
    )
    for original, wrap in wraps:
        wrapper = functools.wraps(original)(wrap(original, held))
        wrapper.is_jdist = True  # type: ignore[attr-defined]
        _replace(original, wrapper)
    _mark_store_waits()
    watch_recv_any()
    watch_ddp()


def _replace(original: Any, wrapper: Any) -> None:
    name = original.__name__
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.distributed") and vars(module).get(name) is original:
            setattr(module, name, wrapper)


# ---------------------------------------------------------------- the world


def _wrap_init(original: Callable[..., None], held: Held) -> Callable[..., None]:
    signature = inspect.signature(original)

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not held.is_in_cell:
            original(*args, **kwargs)
            return
        asked = signature.bind(*args, **kwargs)
        asked.apply_defaults()
        _check_agrees(asked.arguments, held)
        backend, _rank, world_size = held.held
        print(f"init_process_group: the world of {world_size} ranks ({backend}) is already formed; nothing to do")

    return init_process_group


def _check_agrees(asked: dict[str, Any], held: Held) -> None:
    backend, rank, world_size = held.held
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


def _wrap_destroy(original: Callable[..., None], held: Held) -> Callable[..., None]:
    def destroy_process_group(group: Any = None) -> None:
        from torch.distributed import distributed_c10d as c10d

        if not held.is_in_cell:
            original(group)
        elif group is None or group is c10d.GroupMember.WORLD:
            print("destroy_process_group: jdist keeps the world formed for the next cell; nothing to do")
        else:
            original(group)
            held.destroyed(group)

    return destroy_process_group


# ---------------------------------------------------------------- groups


def _wrap_new_group(original: Callable[..., Any], held: Held) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        if not held.is_in_cell:
            return original(*args, **kwargs)
        asked = signature.bind(*args, **kwargs)
        asked.apply_defaults()
        a = asked.arguments
        a["timeout"] = a["timeout"] or FOREVER
        world = range(held.held[2])
        ranks = tuple(world if a["ranks"] is None else a["ranks"])
        with held.making() as begun:
            group = original(*asked.args, **asked.kwargs)
            listeners = begun()
        if a["use_local_synchronization"]:
            held.made_locally(ranks)
        else:
            spec = GroupSpec(
                tuple(sorted(ranks)) if a["sort_ranks"] else ranks,
                None if a["backend"] is None else str(a["backend"]),
                a["group_desc"] or "",
            )
            held.made(spec, group, listeners)
        return group

    return new_group


def _wrap_split_group(original: Callable[..., Any], held: Held) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def split_group(*args: Any, **kwargs: Any) -> Any:
        from torch.distributed import distributed_c10d as c10d

        if not held.is_in_cell:
            return original(*args, **kwargs)
        asked = signature.bind(*args, **kwargs)
        asked.apply_defaults()
        a = asked.arguments
        with held.making() as begun:
            group = original(*args, **kwargs)
            listeners = begun()
        splits = tuple(tuple(ranks) for ranks in a["split_ranks"] or ())
        mine = next((s for s in splits if held.held[1] in s), ())
        if a["parent_pg"] is None or a["parent_pg"] is c10d.GroupMember.WORLD:
            spec = GroupSpec((), None, a["group_desc"] or "", splits)
            held.made(spec, group, listeners)
        else:
            held.made_locally(mine)
        return group

    return split_group


# ---------------------------------------------------------------- waits at a store


def _mark_store_waits() -> None:
    """Give the store's blocking C++ methods a Python frame, by which worker/gloo/connections recognises them."""
    import torch.distributed as dist

    for name in _BLOCKING_STORE_METHODS:
        original = getattr(dist.Store, name, None)
        if original is not None:
            wrapper = _marked(original)
            wrapper.__name__ = name
            wrapper.__doc__ = original.__doc__
            wrapper.__code__ = wrapper.__code__.replace(co_name=name)
            STORE_WAITS.add(wrapper.__code__)
            setattr(dist.Store, name, wrapper)


def _marked(original: Any) -> Any:
    def wait(store: Any, *args: Any, **kwargs: Any) -> Any:
        return original(store, *args, **kwargs)

    return wait
