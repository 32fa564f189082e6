"""Values that need all ranks at once: assembling DTensors and broadcasting, run as a cell on each rank."""

from typing import Any

import torch
import torch.distributed as dist

from jdist.worker.values.describe import evaluate


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
