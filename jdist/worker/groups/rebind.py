"""Point whatever still refers to the process groups of the last generation at the new ones.

Users' variables, FSDP's mesh objects and DDP's C++ reducer refer to groups. DTensor and DeviceMesh look groups up by
name.

The garbage collector knows which of the objects that it tracks refer to another one. It does not track process groups,
nor tuples and dicts in which nothing is tracked, such as the default arguments of a function; these are searched for
only if an object's reference count shows that some reference to it has not been found. What cannot be changed, such as
a tuple, is made anew with the replacement in it, and then replaced in its turn.

DistributedDataParallel is no state: its module is moved between processes, and wrapped again as it was. A reducer sorts
the parameters into buckets, and into others after its first backward, all ranks at once. One that is made later on one
rank would sum other parameters than its peers', so every rank makes a new one then.
"""

import contextlib
import functools
import gc
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from jdist.core.errors import UsageError
from jdist.worker.compat.torch import has_comm_hook, make_new_reducer, move_ddp, resolve_group

_ROUNDS = 8  # Levels of tuples in tuples.
_SUSPENDED = (GeneratorType, CoroutineType, AsyncGeneratorType)
_IMMUTABLE = (tuple, frozenset, MethodType)
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakSet)
# Where a reference was found that no list of referrers shows; looked at first when the next handle is replaced.
_hidden_in: list[weakref.ref[Any]] = []


class Replacement:
    """Replaces ``old[i]`` by ``new[i]`` wherever it is held. Holds no reference to old objects but ``old`` itself."""

    def __init__(self, old: list[Any], new: list[Any]):
        self._old = old
        self._new: dict[int, Any] = {id(o): n for o, n in zip(old, new, strict=True)}
        self._remade: list[Any] = []  # Immutable holders whose place others have taken: their ids must stay theirs.
        self.unsearched: set[str] = set()  # Holders whose own code failed.
        self._own: set[int] = {id(old), id(self._remade), id(self.__dict__)}

    def run(self, nearby: Iterable[Any]) -> list[str]:
        """Replace everywhere; ``nearby`` are holders that the collector may not know. Says what still holds the old."""
        for holder in (*nearby, *filter(None, [ref() for ref in _hidden_in])):
            self._replace_in(holder)
        found = self._rounds(self._old)
        self._replace_weak_keys()
        if self._is_hidden():
            found |= self._rounds(list(self._hidden()), is_hidden=True)
            if self._is_hidden() and gc.get_freeze_count():
                gc.unfreeze()  # a module that was imported before the fork may have been given a handle
                found |= self._rounds(self._old) | self._rounds(list(self._hidden()), is_hidden=True)
        return sorted({f"the suspended {holder.__qualname__}()" for holder in found.values()})

    def left(self) -> list[tuple[Any, list[Any]]]:
        """Tuples and frozensets that still hold old objects, each with those; not such as only a frame knows."""
        held = [h for h in _referrers(self._old) if _is(h, tuple | frozenset)]
        remaining = []
        for holder in held:
            inside = [v for v in holder if id(v) in self._new]
            around = [h for h in gc.get_referrers(holder) if h is not held and id(h) not in self._own]
            if inside and not all(_is(h, FrameType) for h in around):
                remaining.append((holder, inside))
        return remaining

    # ------------------------------------------------------------ search

    def _rounds(self, targets: list[Any], *, is_hidden: bool = False) -> dict[int, Any]:
        """Replace the targets in their holders, then immutable holders in theirs; returns suspended functions by id."""
        suspended: dict[int, Any] = {}
        for _ in range(_ROUNDS):
            if not targets:
                break
            own = self._own | {id(targets)}
            following: list[Any] = []
            for holder in _referrers(targets):
                if id(holder) in own or _is(holder, FrameType):
                    continue
                if _is(holder, _SUSPENDED):
                    suspended[id(holder)] = holder
                elif _is(holder, _IMMUTABLE):
                    if id(holder) not in self._new and (made := self.replacement(holder)) is not None:
                        self._new[id(holder)] = made
                        self._remade.append(holder)
                        following.append(holder)
                elif self._replace_in(holder) and is_hidden:
                    _remember(holder)
            targets = following
        return suspended

    def _is_hidden(self) -> bool:
        """Whether one of the old objects has more references than those that the collector knows."""
        known = Counter(id(value) for holder in _referrers(self._old) for value in gc.get_referents(holder))
        # One more is the argument of getrefcount.
        return any(sys.getrefcount(self._old[i]) > known[id(self._old[i])] + 1 for i in range(len(self._old)))

    def _hidden(self) -> Iterator[Any]:
        """Tuples and dicts, unknown to the collector, that hold old objects."""
        seen: set[int] = set()
        for value in gc.get_referents(*gc.get_objects()):
            if _is(value, tuple | dict) and not gc.is_tracked(value) and id(value) not in seen:
                seen.add(id(value))
                if _is(value, dict):
                    self._replace_in(value)
                elif id(value) not in self._new and (made := self.replacement(value)) is not None:
                    self._new[id(value)] = made
                    self._remade.append(value)
                    yield value

    def _replace_weak_keys(self) -> None:
        if not any(map(weakref.getweakrefcount, self._old)):
            return
        for table in [each for each in gc.get_objects() if _is(each, _WEAK)]:
            for key in [key for key in table if id(key) in self._new]:
                if _is(table, weakref.WeakSet):
                    table.discard(key)
                    table.add(self._new[id(key)])
                else:
                    table[self._new[id(key)]] = table.pop(key)

    # ------------------------------------------------------------ replacing

    def replacement(self, value: Any) -> Any:
        """What takes the place of ``value``, made anew if it is immutable; None if nothing in it is replaced."""
        known = self._new.get(id(value))
        if known is not None or not _is(value, _IMMUTABLE):
            return known
        if _is(value, MethodType):
            inside = self._new.get(id(value.__self__))
            return None if inside is None else MethodType(value.__func__, inside)
        parts = [self.replacement(v) for v in value]
        if all(part is None for part in parts):
            return None
        mixed = [v if part is None else part for v, part in zip(value, parts, strict=True)]
        return tuple.__new__(type(value), mixed) if _is(value, tuple) else type(value)(mixed)

    def _replace_in(self, holder: Any) -> bool:
        """Replace inside one container, instance, class, function, partial or closure; whether anything was held.

        What a holder's own code raises, such as an ``items`` of the user's, costs this holder alone.
        """
        try:
            return self._replace_in_one(holder)
        except BaseException as e:  # SystemExit as well: the world must be formed
            self.unsearched.add(f"a {type(holder).__name__} raised {type(e).__name__} as it was searched")
            return False

    def _replace_in_one(self, holder: Any) -> bool:
        if _is(holder, list | deque):
            found = [(i, made) for i, value in enumerate(list(holder)) if (made := self.replacement(value)) is not None]
            for i, made in found:
                holder[i] = made
            return bool(found)
        if _is(holder, set):
            changes = [(value, made) for value in list(holder) if (made := self.replacement(value)) is not None]
            holder.difference_update([value for value, _ in changes])
            holder.update(made for _, made in changes)
            return bool(changes)
        if _is(holder, dict):
            return self._replace_in_dict(holder)
        if _is(holder, CellType):
            try:
                made = self.replacement(holder.cell_contents)
            except ValueError:  # it is empty
                return False
            if made is not None:
                holder.cell_contents = made
            return made is not None
        if _is(holder, FunctionType):
            made = self.replacement(holder.__defaults__)
            if made is not None:
                holder.__defaults__ = made
            return self._replace_in_dict(holder.__kwdefaults__ or {}) or made is not None
        if _is(holder, functools.partial):
            args = self.replacement(holder.args)
            is_changed = self._replace_in_dict(keywords := dict(holder.keywords)) or args is not None
            if is_changed:
                args = holder.args if args is None else args
                holder.__setstate__((holder.func, args, keywords, holder.__dict__ or None))
            return is_changed
        return self._replace_attributes(holder)

    def _assign(self, holder: Any, items: Iterable[tuple[Any, Any]]) -> bool:
        found = [(key, made) for key, value in items if (made := self.replacement(value)) is not None]
        for key, made in found:
            holder[key] = made
        return bool(found)

    def _replace_in_dict(self, holder: dict[Any, Any]) -> bool:
        found = [(key, made) for key, value in list(holder.items()) if (made := self.replacement(value)) is not None]
        if "__module__" in holder and found:  # a class's: it must learn of the change
            for owner in [each for each in gc.get_referrers(holder) if _is(each, type)]:
                for name, made in found:
                    type.__setattr__(owner, name, made)
        holder.update(found)
        if not any(self.replacement(key) is not None for key in list(holder)):
            return bool(found)
        items = [
            (key if (made := self.replacement(key)) is None else made, value) for key, value in list(holder.items())
        ]
        holder.clear()  # their order is kept
        holder.update(items)
        return True

    def _replace_attributes(self, holder: Any) -> bool:
        entries = instance_dict(holder)
        is_changed = self._replace_in_dict(entries) if entries is not None else False
        for slot in _slots(type(holder)):
            with contextlib.suppress(AttributeError):  # it is empty
                made = self.replacement(slot.__get__(holder))
                if made is not None:
                    slot.__set__(holder, made)  # of a frozen dataclass, too
                    is_changed = True
        return is_changed


def _is(value: Any, kind: Any) -> bool:
    """As isinstance, but without asking the value: a proxy may do anything then."""
    return issubclass(type(value), kind)


def _referrers(objects: Iterable[Any]) -> list[Any]:
    """Return what refers to any of the objects, except the tuple of arguments, which Python 3.13 finds as well."""
    asked = tuple(objects)
    return [holder for holder in gc.get_referrers(*asked) if holder is not asked]


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The attributes of an instance, also of one that forbids access to them or whose access runs code; None: none."""
    with contextlib.suppress(Exception):
        found = object.__getattribute__(value, "__dict__")
        if type(found) is dict:
            return found
    return None


def _slots(of: type) -> Iterator[Any]:
    for base in of.__mro__:
        if "__slots__" in base.__dict__:
            yield from (each for each in base.__dict__.values() if _is(each, MemberDescriptorType))


def _remember(holder: Any) -> None:
    with contextlib.suppress(TypeError):  # nothing can refer weakly to it: it is searched for again
        _hidden_in.append(weakref.ref(holder, _hidden_in.remove))


_DDP_OPTIONS = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")


def is_special_ddp(ddp: Any) -> bool:
    """Whether it has what another process cannot be given: a communication hook, or mixed precision of DDP's own."""
    return has_comm_hook(ddp) or getattr(ddp, "mixed_precision", None) is not None


def ddp_options(ddp: Any) -> dict[str, Any]:
    """The options with which :func:`wrap` wraps as ``ddp`` does; the process group by torch's name."""
    return {
        **{name: getattr(ddp, name) for name in _DDP_OPTIONS},
        "process_group": str(ddp.process_group.group_name),
        "bucket_cap_mb": max(1, ddp.bucket_bytes_cap >> 20),
    }


def wrap_ddp(module: Any, options: dict[str, Any]) -> Any:
    """DDP around a module, on this rank alone: the others have theirs."""
    options = {**options, "process_group": resolve_group(options["process_group"])}
    on = next((p.device for p in module.parameters()), torch.device("cpu"))
    if on.type != "cpu":
        options["device_ids"] = [on.index]
    return DistributedDataParallel(module, init_sync=False, **options)


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
        if not is_special_ddp(wrapped):
            with contextlib.suppress(UsageError):  # torch lacks what it takes: `rebind` says so
                make_new_reducer(wrapped)


def rebind(
    previous: dict[object, Any], groups: dict[object, Any], namespace: dict[str, Any], holders: Iterable[Any] = ()
) -> list[str]:
    """Point DDP modules and all other holders at the group that is now under an old one's key.

    Returns notices about what could not be reached. ``holders``, and what the namespace leads to, are looked at first,
    since the garbage collector does not know all containers (see `jdist.worker.groups.rebind`).
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
    suspended = replacement.run((*holders, *_reachable(namespace)))
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
