"""Rebinding: whatever still points at the process groups of the last generation is pointed at the new ones.

torch keeps a group as an object, so a re-formed world leaves stale ones in users' variables, in FSDP's mesh objects and
inside DDP's C++ reducer. DTensor and DeviceMesh look groups up by name and need nothing.
"""

import functools
import gc
import weakref
from collections.abc import Iterable, Iterator
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from jdist.worker.compat.torch import move_ddp

# The end of a notice about what the user has to make again.
ON_REFORM = "; a function with @jdist.on_reform is called whenever that is needed"

_WALK_LIMIT = 50_000
# Packages whose instances hold no user's group: a namespace leads to the shell, and that to thousands of them.
_SHELLS = {"IPython", "ipykernel", "traitlets"}
_ddps: weakref.WeakSet[Any] = weakref.WeakSet()


class GroupPairs:
    """Old groups, each with the group that takes its place and what a notice calls it."""

    def __init__(self) -> None:
        self.old: list[ProcessGroup] = []
        self._new: dict[int, ProcessGroup] = {}
        self._names: dict[int, str] = {}

    def add(self, old: ProcessGroup, new: ProcessGroup, name: str) -> None:
        self.old.append(old)
        self._new[id(old)] = new
        self._names[id(old)] = name

    def new(self, value: object) -> Any:
        """What takes ``value``'s place (also a tuple's, with new groups in it), or None where it holds no old group."""
        if type(value) is tuple:
            inside = [self.new(v) for v in value]
            changed = any(new is not None for new in inside)
            return tuple(v if new is None else new for v, new in zip(value, inside, strict=True)) if changed else None
        return self._new.get(id(value))

    def names(self, holder: Iterable[object]) -> list[str]:
        """What the old groups directly in ``holder`` are called."""
        return sorted({self._names[id(v)] for v in holder if id(v) in self._names})


def remember_ddp_modules() -> None:
    """Remember every DistributedDataParallel module while it lives."""
    original = DistributedDataParallel.__init__
    if getattr(original, "is_remembering", False):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _ddps.add(self)

    init.is_remembering = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def rebind(pairs: GroupPairs, namespace: dict[str, Any]) -> tuple[str, ...]:
    """Point DDP modules, containers, instances and closures at the new groups; returns what could not be reached.

    Two ways in, since neither sees everything: the garbage collector knows who refers to a group, except dicts that it
    does not track (all their values are plain); those are found by walking what the namespace holds.
    """
    if not pairs.old:
        return ()
    notices = list(_rebind_ddp(pairs))
    for holder in gc.get_referrers(*pairs.old):
        if holder is not pairs.old:
            _rebind_in(holder, pairs)
    for holder in _reachable(namespace):
        _rebind_in(holder, pairs)
    for holder in gc.get_referrers(*pairs.old):
        if isinstance(holder, tuple | frozenset):
            kind, names = type(holder).__name__, ", ".join(pairs.names(holder))
            notices.append(f"a {kind} still holds the old handle of {names}; make that {kind} again{ON_REFORM}")
    return tuple(dict.fromkeys(notices))


def _rebind_ddp(pairs: GroupPairs) -> Iterator[str]:
    for ddp in list(_ddps):
        new = pairs.new(ddp.process_group)
        if new is None:
            yield (
                f"DistributedDataParallel({type(ddp.module).__name__}) was built on a group that is gone; "
                f"build it again from its .module{ON_REFORM}"
            )
        else:
            move_ddp(ddp, new)


def _rebind_in(holder: Any, pairs: GroupPairs) -> None:
    """Replace old groups inside one container, instance, function or closure cell."""
    if isinstance(holder, list):
        for i, value in enumerate(holder):
            if (new := pairs.new(value)) is not None:
                holder[i] = new
    elif isinstance(holder, set):
        for value in [v for v in holder if pairs.new(v) is not None]:
            holder.discard(value)
            holder.add(pairs.new(value))
    elif isinstance(holder, CellType):
        holder.cell_contents = pairs.new(holder.cell_contents)
    elif isinstance(holder, FunctionType):
        holder.__defaults__ = pairs.new(holder.__defaults__) or holder.__defaults__
    elif not isinstance(holder, FrameType | tuple | frozenset):
        entries = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
        if type(entries) is dict:
            for key, value in list(entries.items()):
                if (new := pairs.new(value)) is not None:
                    entries[key] = new


def _reachable(namespace: dict[str, Any]) -> Iterator[Any]:
    """Containers and instances that the namespace leads to, nearest first, as far as the limit."""
    seen: set[int] = {id(namespace)}
    level: list[Any] = [namespace]
    while level and len(seen) < _WALK_LIMIT:
        found: list[Any] = []
        for holder in level:
            yield holder
            for value in _inside(holder):
                if id(value) not in seen and len(seen) < _WALK_LIMIT:
                    seen.add(id(value))
                    found.append(value)
        level = found


def _inside(holder: Any) -> Iterator[Any]:
    entries = holder if isinstance(holder, list | set | dict) else vars(holder)
    for value in list(entries.values() if isinstance(entries, dict) else entries):
        if isinstance(value, dict | list | set) or _is_instance(value):
            yield value


def _is_instance(value: Any) -> bool:
    if isinstance(value, type | ModuleType | FrameType) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    owner = value.__self__ if isinstance(value, MethodType) else value
    return type(owner).__module__.partition(".")[0] not in _SHELLS
