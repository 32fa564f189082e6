"""Rebuilding what a save has written: the functions to which its pickles refer, called while a session is loaded."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from jdist.worker.groups import rebind
from jdist.worker.session import sharding
from jdist.worker.session.rebuild import LostValue


class _LoadContext(threading.local):
    """What the functions below need while this thread loads a session."""

    entries: Mapping[str, torch.Tensor]  # By label, filled.
    meshes: Mapping[int, Any]
    groups: Sequence[Any]


_now = _LoadContext()


@contextlib.contextmanager
def loading(entries: Mapping[str, torch.Tensor], meshes: Mapping[int, Any], groups: Sequence[Any]) -> Iterator[None]:
    """Within this context the pickles of a save may be loaded on this thread."""
    _now.entries, _now.meshes, _now.groups = entries, meshes, groups
    try:
        yield
    finally:
        del _now.entries, _now.meshes, _now.groups


def nothing() -> None:
    """What a survey pickles in place of what is saved elsewhere."""


def tensor(label: str, kind: type, requires_grad: bool) -> torch.Tensor:
    """An entry, as a tensor or a parameter."""
    found = _now.entries[label]
    return nn.Parameter(found, requires_grad) if kind is nn.Parameter else found.requires_grad_(requires_grad)


def complete(made: torch.Tensor, state: tuple[torch.Tensor | None, dict[str, Any] | None]) -> None:
    """Give a tensor its gradient and its attributes."""
    grad, attributes = state
    made.grad = grad
    made.__dict__.update(attributes or {})


def memory(label: str) -> torch.UntypedStorage:
    """The memory of tensors that share it."""
    return _now.entries[label].untyped_storage()


def mesh(number: int) -> Any:
    """A device mesh of this world."""
    return _now.meshes[number]


def group(number: int) -> Any:
    """A process group of this world."""
    found = _now.groups[number]
    return LostValue("process group of ranks that this world does not have") if found is None else found


def wrapped_in_ddp(module: Any, options: dict[str, Any], members: Any, is_training: bool) -> Any:
    """DDP around a module, on every rank of its group."""
    wrapped = rebind.wrap_ddp(module, {**options, "process_group": str(members.group_name)})
    wrapped.training = is_training
    return wrapped


def plain_module(kind: type[nn.Module]) -> nn.Module:
    """A module without attributes; they follow."""
    return kind.__new__(kind)


def fill_module(module: nn.Module, state: dict[str, Any]) -> None:
    """Set a module's attributes."""
    module.__dict__.update(state)


def sharded_module(plain: nn.Module, calls: list[sharding.ShardingCall], shards: dict[str, str]) -> nn.Module:
    """A module sharded by fully_shard as it was; ``shards`` are the labels of its parameters, by name."""
    loaded = {name: _now.entries[label] for name, label in shards.items()}
    return sharding.shard(plain, calls, loaded)


def sharded_parameter(root: nn.Module, name: str) -> nn.Parameter:
    """A parameter of a sharded module, to which something else refers."""
    return root.get_parameter(name)
