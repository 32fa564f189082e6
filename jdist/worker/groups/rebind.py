"""Rebinding: whatever still points at the process groups of the last generation is pointed at the new ones.

That is users' variables, FSDP's mesh objects and DDP's C++ reducer. DTensor and DeviceMesh look groups up by name.
"""

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, MethodType, ModuleType
from typing import Any

from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from jdist.core.errors import UsageError
from jdist.worker.compat.torch import make_new_reducer, move_ddp
from jdist.worker.groups.holders import Replacement, instance_dict
from jdist.worker.values import ddp

# The ends of a notice about what the user has to make again.
ON_REFORM = "; a function with @jdist.on_reform is called whenever that is needed"
AGAIN = f"make it again{ON_REFORM}"

_WALK_LIMIT = 50_000
_SHELLS = {"IPython", "ipykernel", "traitlets"}  # Thousands of their objects are reachable; none holds a group.
_ddps: weakref.WeakSet[Any] = weakref.WeakSet()

_New = dict[int, ProcessGroup]  # By the id of the group whose place it takes.


def remember_ddp_modules(check: Callable[[str], None]) -> None:
    """Remember every DistributedDataParallel module while it lives; once a process.

    ``check`` is called first: the ranks compare and copy a module's parameters in C++ when it is made.
    """
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        check("DistributedDataParallel")
        original(self, *args, **kwargs)
        _ddps.add(self)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def renew_reducers() -> None:
    """Have every DDP module begin anew with its buckets, as does one that another rank has just wrapped."""
    for wrapped in list(_ddps):
        if not ddp.is_special(wrapped):
            with contextlib.suppress(UsageError):  # torch lacks what it takes: `rebind` says so
                make_new_reducer(wrapped)


def rebind(previous: dict[object, Any], groups: dict[object, Any], namespace: dict[str, Any]) -> list[str]:
    """Point DDP modules and all other holders at the group that is now under an old one's key.

    Returns notices about what could not be reached. What the namespace leads to is looked at first, since the garbage
    collector does not know all containers (see `jdist.worker.groups.holders`).
    """
    notices: list[str] = []
    old: list[ProcessGroup] = []
    new: _New = {}
    names: dict[int, str] = {}
    for key in list(previous):
        group = previous.pop(key)  # no reference may stay but those to be replaced
        if isinstance(group, ProcessGroup):  # else this rank was not in it
            name = key if isinstance(key, str) else f"group {group.group_name} ({group.group_desc})"
            if isinstance(groups.get(key), ProcessGroup):
                old.append(group)
                new[id(group)], names[id(group)] = groups[key], name
            else:
                notices.append(f"{name} of the last generation is gone; {AGAIN}")
    if not old:
        return notices
    del group
    for wrapped in list(_ddps):
        why = "was built on a group that is gone"
        try:
            if (moved_to := new.get(id(wrapped.process_group))) is not None:
                move_ddp(wrapped, moved_to)
                continue
        except UsageError as e:  # torch lacks what moves it
            why = f"cannot go on: {e}"
        name = f"DistributedDataParallel({type(wrapped.module).__name__})"
        notices.append(f"{name} {why}; build it again from its .module{ON_REFORM}")
    replacement = Replacement(old, [new[id(group)] for group in old])
    suspended = replacement.run(_reachable(namespace))
    notices += [f"{each} still holds a group of the last generation; {AGAIN}" for each in suspended]
    notices += [f"{each}; if it holds a group, {AGAIN}" for each in sorted(replacement.unsearched)]
    for holder, groups_inside in replacement.left():
        kind, held = type(holder).__name__, sorted({names[id(group)] for group in groups_inside})
        notices.append(f"a {kind} still holds the old handle of {', '.join(held)}; make that {kind} again{ON_REFORM}")
    return list(dict.fromkeys(notices))


def _reachable(namespace: dict[str, Any]) -> Iterator[Any]:
    """Containers and instances that the namespace leads to, nearest first, as far as the limit."""
    seen: set[int] = {id(namespace)}
    waiting: deque[Any] = deque([namespace])
    while waiting:
        holder = waiting.popleft()
        yield holder
        for value in _entries(holder):
            if id(value) not in seen and len(seen) < _WALK_LIMIT and _may_hold_groups(value):
                seen.add(id(value))
                waiting.append(value)


def _entries(holder: Any) -> list[Any]:
    """The values in a container or an instance, by no code of the user's."""
    for kind in (list, set):
        if issubclass(type(holder), kind):
            return list(kind.__iter__(holder))
    entries = holder if issubclass(type(holder), dict) else instance_dict(holder)
    return [] if entries is None else list(dict.values(entries))


def _may_hold_groups(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, dict | list | set):
        return True
    if issubclass(kind, type | ModuleType | FrameType) or instance_dict(value) is None:
        return False
    owner = type(value.__self__) if kind is MethodType else kind
    return owner.__module__.partition(".")[0] not in _SHELLS
