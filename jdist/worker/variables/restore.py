"""Cells that copy values between ranks: assemble, broadcast, restore a fresh rank.

They run as a cell on every rank.

DDP brings parameters in line, but not the optimizer, which would drift away unseen; so names are restored together.
What the fresh rank has already is filled in place, since other objects may refer to it; what it lacks is sent in one
piece, so that an optimizer still steps its model's very parameters. DDP itself is no state: the module in it is
restored and wrapped again.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.nn.parallel import DistributedDataParallel

from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.base import PayloadWire
from jdist.wire.values.objects import decode, encode
from jdist.worker.compat.torch import device_types, make_new_reducer
from jdist.worker.groups import rebind
from jdist.worker.variables.describe import evaluate


def full_values(names: tuple[str, ...], namespace: dict[str, Any]) -> dict[str, Any]:
    """``{name: value}`` with every DTensor in it assembled (``full_tensor``, a collective over its mesh)."""
    return {name: _full(evaluate(name, namespace)) for name in names}


def _full(value: Any) -> Any:
    if hasattr(value, "full_tensor") and hasattr(value, "placements"):
        return value.full_tensor()
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, dict):
        return {k: _full(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_full(v) for v in value)
    return value


def broadcast(name: str, src: int, namespace: dict[str, Any]) -> None:
    """Bind rank ``src``'s value of ``name`` on every rank: tensors as they are, anything else pickled on the way."""
    rank = dist.get_rank()
    value = evaluate(name, namespace) if rank == src else None
    note: Any = None
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not hasattr(value, "placements"):
        note = tuple(value.shape), value.dtype, value.requires_grad
    note = broadcast_object(note, src)
    if note is None:
        namespace[name] = broadcast_object(value, src)
        return
    shape, dtype, requires_grad = note
    device = namespace.get("device", "cpu")
    tensor = value.detach().contiguous() if value is not None else torch.empty(shape, dtype=dtype, device=device)
    if tensor.numel():
        dist.broadcast(tensor.reshape(-1).view(torch.uint8), src=src)  # every dtype travels as bytes
    if rank != src:
        namespace[name] = tensor.requires_grad_(requires_grad)


def broadcast_object(value: Any, src: int) -> Any:
    """Rank ``src``'s ``value``, pickled on the way."""
    box = [value]
    dist.broadcast_object_list(box, src=src)
    return box[0]


_CHUNK = 64 << 20  # Bytes that travel in one send.


class HeldState(Struct, frozen=True):
    """What a rank holds under a name: enough to decide whether another rank's state fits it."""

    type: str
    is_stateful: bool
    parts: dict[str, str] = {}  # Entries of its state that must agree, by key.


class RestoreItem(Struct, frozen=True):
    """How one name is restored: load (its state, in place), copy (a tensor, in place) or bind (the whole)."""

    name: str
    how: str
    ddp: dict[str, Any] | None = None  # Wrap it in DDP with these options; `process_group` is torch's name of it.


def restore(names: tuple[str, ...], src: int, dst: int, namespace: dict[str, Any]) -> dict[str, str]:
    """Restore ``names`` on rank ``dst`` from rank ``src``; returns, on ``dst``, what was done to each.

    Call it on every rank. Raises UsageError on ``src``, with nothing changed, when a name is missing or does not fit.
    """
    __tracebackhide__ = True
    rank = dist.get_rank()
    held = broadcast_object({n: _held(namespace.get(n)) for n in names} if rank == dst else None, dst)
    plan: tuple[tuple[RestoreItem, ...], PayloadWire] | str = ""
    buffers: list[memoryview] = []
    if rank == src:
        try:
            items, payload, buffers = _pack(names, held, (src, dst), namespace)
            plan = items, payload
        except JdistError as e:
            plan = str(e)
    plan = broadcast_object(plan, src)
    if isinstance(plan, str):
        if rank == src:
            raise UsageError(plan)
        return {}
    items, payload = plan
    done: dict[str, str] = {}
    if rank == src:
        for buffer in buffers:
            _send(buffer, dst)
    elif rank == dst:
        values = decode(payload, [_receive(size, src) for size in payload.sizes])
        done = {item.name: _apply(item, values[item.name], namespace) for item in items}
    for item in items:
        if isinstance(wrapped := namespace.get(item.name), DistributedDataParallel):
            make_new_reducer(wrapped)
    return done


def _held(obj: Any) -> HeldState | None:
    """None for a name that is missing or bound to None."""
    if obj is None:
        return None
    obj = _inner(obj)
    is_stateful = all(callable(getattr(type(obj), name, None)) for name in ("state_dict", "load_state_dict"))
    parts = {}
    if isinstance(obj, torch.Tensor):
        parts = {"": _meta(obj)}
    elif isinstance(obj, torch.nn.Module):
        parts = {k: _meta(v) if isinstance(v, torch.Tensor) else "" for k, v in obj.state_dict().items()}
    elif isinstance(obj, torch.optim.Optimizer):
        parts = {f"group {i}": f"{len(g['params'])} parameters" for i, g in enumerate(obj.param_groups)}
    return HeldState(f"{type(obj).__module__}.{type(obj).__qualname__}", is_stateful, parts)


def _inner(obj: Any) -> Any:
    return obj.module if isinstance(obj, DistributedDataParallel) else obj


def _meta(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


# ---------------------------------------------------------------- on the source


def _pack(
    names: tuple[str, ...], held: dict[str, HeldState | None], ranks: tuple[int, int], namespace: dict[str, Any]
) -> tuple[tuple[RestoreItem, ...], PayloadWire, list[memoryview]]:
    src, dst = ranks
    missing = [n for n in names if n not in namespace]
    if missing:
        raise UsageError(f"rank {src} has no name {', '.join(map(repr, missing))}; nothing was restored")
    items = tuple(_item(n, namespace[n], held[n], ranks) for n in names)
    whole = {i.name: _inner(namespace[i.name]) for i in items if i.how == "bind"}
    in_place = {i.name: _inner(namespace[i.name]) for i in items if i.how != "bind"}
    for name, obj in whole.items():
        _check_links(name, obj, whole, (dst, in_place))
    states = {n: obj.detach() if isinstance(obj, torch.Tensor) else obj.state_dict() for n, obj in in_place.items()}
    payload, buffers = encode({**whole, **states})
    return items, payload, buffers


def _item(name: str, obj: Any, there: HeldState | None, ranks: tuple[int, int]) -> RestoreItem:
    src, dst = ranks
    here = _held(obj)
    inner = _inner(obj)
    held = inner.state_dict().values() if isinstance(inner, torch.nn.Module) else _tensors(inner)
    if any(p.is_shard() for tensor in held for p in getattr(tensor, "placements", ())):
        raise UsageError(  # one part is no replica of another
            f"{name} is sharded (DTensor): rank {src} holds a part of its own, and the lost part is nowhere else; "
            "load it from a checkpoint on all ranks"
        )
    options = _ddp_options(name, obj, dst) if isinstance(obj, DistributedDataParallel) else None
    if here is None or there is None:
        return RestoreItem(name, "bind", options)
    if not here.is_stateful and not there.is_stateful:
        return RestoreItem(name, "copy" if isinstance(obj, torch.Tensor) and here == there else "bind")
    if here.type != there.type:
        raise UsageError(
            f"{name} is a {here.type} on rank {src} and a {there.type} on rank {dst}: neither fills the other. "
            f"del {name} on rank {dst} to have the whole object sent"
        )
    for key in {**here.parts, **there.parts}:
        one, other = here.parts.get(key, "not there"), there.parts.get(key, "not there")
        if one != other:
            raise UsageError(
                f"{name} differs at {key!r}: {one} on rank {src}, {other} on rank {dst}; make it alike first"
            )
    return RestoreItem(name, "load", options)


def _tensors(obj: Any) -> list[torch.Tensor]:
    """The tensors that an object is made of or steps, one level deep."""
    if isinstance(obj, torch.nn.Module):
        return [*obj.parameters(), *obj.buffers()]
    if isinstance(obj, torch.optim.Optimizer):
        return [p for g in obj.param_groups for p in g["params"]]
    found: Iterable[Any] = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, list | tuple) else (obj,)
    return [t for t in found if isinstance(t, torch.Tensor)]


def _check_links(name: str, obj: Any, whole: dict[str, Any], there: tuple[int, dict[str, Any]]) -> None:
    """Refuse to send an object whole without what it works on: it would work on a copy of that."""
    dst, in_place = there
    if isinstance(obj, torch.optim.Optimizer):
        needed = {id(t) for t in _tensors(obj)}
        sent = {id(t) for o in whole.values() if o is not obj for t in _tensors(o)}
        filled = [n for n, o in in_place.items() if needed & {id(t) for t in _tensors(o)}]
    elif isinstance(optimizer := getattr(obj, "optimizer", None), torch.optim.Optimizer):
        needed = {id(optimizer)}
        sent = {id(o) for o in whole.values()}
        filled = [n for n, o in in_place.items() if o is optimizer]
    else:
        return
    if filled:
        raise UsageError(
            f"rank {dst} has its own {filled[0]} and no {name}: make {name} there from it first (a --setup cell does "
            f"that), or del {filled[0]} there to have both sent whole"
        )
    if not needed <= sent:
        raise UsageError(f"{name} works on something that is not restored with it; name that too (the model's name)")


# ---------------------------------------------------------------- on the fresh rank


def _apply(item: RestoreItem, value: Any, namespace: dict[str, Any]) -> str:
    mine, done = namespace.get(item.name), "filled in place"
    if item.how == "load":
        _inner(mine).load_state_dict(value)
        value = mine
    elif item.how == "copy" and isinstance(mine, torch.Tensor):
        with torch.no_grad():
            value = mine.copy_(value)
    else:
        value, done = _on_device(value, namespace.get("device")), "copied as a whole"
    if item.ddp is not None and not isinstance(value, DistributedDataParallel):
        value = rebind.wrap_ddp(value, item.ddp)
    namespace[item.name] = value
    return done


def _on_device(value: Any, device: Any) -> Any:
    """Values arrive on the CPU; a rank with a GPU works there."""
    if device is None or device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return value.to(device)
    if isinstance(value, torch.optim.Optimizer):
        value.load_state_dict(value.state_dict())  # moves the state to where the parameters are
    return value


def _ddp_options(name: str, obj: Any, rank: int) -> dict[str, Any]:
    """The options with which DDP is to be wrapped on ``rank``.

    Raises UsageError when ``rank`` is not in the group of ``obj``, or an option cannot be sent to another rank.
    """
    members = dist.get_process_group_ranks(obj.process_group)
    if rank not in members:
        raise UsageError(f"{name} is trained by ranks {members}: rank {rank} is none of its replicas")
    if rebind.is_special_ddp(obj):
        raise UsageError(
            f"{name} has a communication hook or mixed precision of DDP's own: restore its .module under another name, "
            "then build DDP anew on all ranks"
        )
    return rebind.ddp_options(obj)


# ---------------------------------------------------------------- transport


def _transport() -> torch.device:
    """The device through which bytes travel: the CPU where the world's backend takes that."""
    kinds = device_types(dist.group.WORLD)
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    return torch.device(kinds.pop(), torch.cuda.current_device())


def _send(buffer: memoryview, dst: int) -> None:
    device = _transport()
    source = torch.frombuffer(bytearray(buffer) if buffer.readonly else buffer, dtype=torch.uint8)
    for chunk in source.split(_CHUNK):
        dist.send(chunk.to(device), dst)


def _receive(size: int, src: int) -> memoryview:
    target, device = torch.empty(size, dtype=torch.uint8, device="cpu"), _transport()
    for chunk in target.split(_CHUNK):
        there = chunk.to(device)  # the chunk itself, or room for it on a GPU
        dist.recv(there, src)
        chunk.copy_(there)
    return memoryview(target.numpy())  # type: ignore[arg-type,unused-ignore]
