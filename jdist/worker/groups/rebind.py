"""Rebinding: whatever still points at the process groups of the last generation is pointed at the new ones.

That is users' variables, FSDP's mesh objects and DDP's C++ reducer. DTensor and DeviceMesh look groups up by name.
"""

import functools
import gc
import weakref
from collections import deque
from collections.abc import Iterator
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from jdist.worker.compat.torch import make_new_reducer, move_ddp
from jdist.worker.values import ddp

# The ends of a notice about what the user has to make again.
ON_REFORM = "; a function with @jdist.on_reform is called whenever that is needed"
AGAIN = f"make it again{ON_REFORM}"

_WALK_LIMIT = 50_000
_SHELLS = {"IPython", "ipykernel", "traitlets"}  # Thousands of their objects are reachable; none holds a group.
_ddps: weakref.WeakSet[Any] = weakref.WeakSet()

_New = dict[int, ProcessGroup]  # By the id of the group whose place it takes.


def remember_ddp_modules() -> None:
    """Remember every DistributedDataParallel module while it lives; once a process."""
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _ddps.add(self)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def renew_reducers() -> None:
    """Have every DDP module begin anew with its buckets, as does one that another rank has just wrapped."""
    for wrapped in list(_ddps):
        if not ddp.is_special(wrapped):
            make_new_reducer(wrapped)


def rebind(previous: dict[object, Any], groups: dict[object, Any], namespace: dict[str, Any]) -> list[str]:
    """Point DDP modules, containers, instances and closures at the group that is now under an old one's key.

    Returns notices about what could not be reached. The garbage collector knows who refers to a group, except dicts of
    plain values, which it does not track; those are found by walking what the namespace holds.
    """
    notices: list[str] = []
    old: list[ProcessGroup] = []
    new: _New = {}
    names: dict[int, str] = {}
    for key, group in previous.items():
        if isinstance(group, ProcessGroup):  # else this rank was not in it
            name = key if isinstance(key, str) else f"group {group.group_name} ({group.group_desc})"
            if isinstance(groups.get(key), ProcessGroup):
                old.append(group)
                new[id(group)], names[id(group)] = groups[key], name
            else:
                notices.append(f"{name} of the last generation is gone; {AGAIN}")
    if not old:
        return notices
    for wrapped in list(_ddps):
        if (moved_to := new.get(id(wrapped.process_group))) is not None:
            move_ddp(wrapped, moved_to)
        else:
            notices.append(
                f"DistributedDataParallel({type(wrapped.module).__name__}) was built on a group that is gone; "
                f"build it again from its .module{ON_REFORM}"
            )
    for holder in gc.get_referrers(*old):
        if holder is not old:
            _rebind_in(holder, new)
    for holder in _reachable(namespace):
        _rebind_in(holder, new)
    for holder in gc.get_referrers(*old):
        if isinstance(holder, tuple | frozenset):
            kind, held = type(holder).__name__, sorted({names[id(v)] for v in holder if id(v) in names})
            notices.append(
                f"a {kind} still holds the old handle of {', '.join(held)}; make that {kind} again{ON_REFORM}"
            )
    return list(dict.fromkeys(notices))


def _replacement(value: object, new: _New) -> Any:
    """What takes ``value``'s place (also a tuple's, with new groups in it), or None where it holds no old group."""
    if type(value) is tuple:
        inside = [_replacement(v, new) for v in value]
        changed = any(group is not None for group in inside)
        return tuple(v if group is None else group for v, group in zip(value, inside, strict=True)) if changed else None
    return new.get(id(value))


def _rebind_in(holder: Any, new: _New) -> None:
    """Replace old groups inside one container, instance, function or closure cell."""
    if isinstance(holder, list):
        for i, value in enumerate(holder):
            if (group := _replacement(value, new)) is not None:
                holder[i] = group
    elif isinstance(holder, set):
        for value in [v for v in holder if _replacement(v, new) is not None]:
            holder.discard(value)
            holder.add(_replacement(value, new))
    elif isinstance(holder, CellType):
        holder.cell_contents = _replacement(holder.cell_contents, new)
    elif isinstance(holder, FunctionType):
        holder.__defaults__ = _replacement(holder.__defaults__, new) or holder.__defaults__
    elif not isinstance(holder, FrameType | tuple | frozenset):
        entries = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
        if type(entries) is dict:
            for key, value in list(entries.items()):
                if (group := _replacement(value, new)) is not None:
                    entries[key] = group


def _reachable(namespace: dict[str, Any]) -> Iterator[Any]:
    """Containers and instances that the namespace leads to, nearest first, as far as the limit."""
    seen: set[int] = {id(namespace)}
    waiting: deque[Any] = deque([namespace])
    while waiting:
        holder = waiting.popleft()
        yield holder
        entries = holder if isinstance(holder, list | set | dict) else vars(holder)
        for value in list(entries.values() if isinstance(entries, dict) else entries):
            if id(value) not in seen and len(seen) < _WALK_LIMIT and _may_hold_groups(value):
                seen.add(id(value))
                waiting.append(value)


def _may_hold_groups(value: Any) -> bool:
    if isinstance(value, dict | list | set):
        return True
    if isinstance(value, type | ModuleType | FrameType) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    owner = value.__self__ if isinstance(value, MethodType) else value
    return type(owner).__module__.partition(".")[0] not in _SHELLS
