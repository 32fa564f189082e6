"""Introspection of a rank's name: type, signature, value and documentation as text.

It runs beside cells, so no value is printed that has to be copied from a device, or that a user's ``__repr__`` makes.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jdist.worker.queries.completion import find

_LONGEST = 20_000
_SHORT = 200
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SIZED = (str, bytes, list, tuple, dict, set, frozenset)


def introspect(name: str, namespace: Mapping[str, Any], detail: int = 0) -> str:
    """A few lines about the object of a name with dots; "" if there is no such name."""
    try:
        found = find(name, namespace)
    except Exception:  # also what a __getattr__ of the user's may raise
        return ""
    path = _source_of(inspect.getsourcefile, found)  # of what was defined in a cell, it has another name on each rank
    lines = {
        "Type": _type(found),
        "Signature": _signature(name, found),
        "Value": _value(found),
        "Length": str(len(found)) if isinstance(found, _SIZED) else "",
        "File": path if os.path.exists(path) else "",
        "Docstring": "" if isinstance(found, (torch.Tensor, *_PLAIN)) else inspect.getdoc(found) or "",
        "Source": _source_of(inspect.getsource, found) if detail else "",
    }
    parts = ((f"{head}:\n" if "\n" in value else f"{head + ':':<11}") + value for head, value in lines.items() if value)
    text = "\n".join(parts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST:,} characters more"


def _type(found: object) -> str:
    kind = type(found)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _signature(name: str, found: object) -> str:
    if not callable(found) or isinstance(found, torch.nn.Module):
        return ""
    try:
        return f"{name}{inspect.signature(found)}"
    except (ValueError, TypeError):
        return ""


def _value(found: object) -> str:
    if isinstance(found, torch.Tensor):
        dtype = str(found.dtype).removeprefix("torch.")
        placements = getattr(found, "placements", None)
        placed = f", placements {placements}" if placements is not None else ""
        grad = ", requires grad" if found.requires_grad else ""
        return f"{dtype} {list(found.shape)} on {found.device}{placed}{grad}"
    if isinstance(found, _PLAIN):
        text = repr(found[: _SHORT + 1]) if isinstance(found, str | bytes) else repr(found)
        return text if len(text) <= _SHORT else text[:_SHORT] + "…"
    return ""


def _source_of(read: Callable[[Any], str | None], found: object) -> str:
    try:
        return read(found) or ""
    except (TypeError, OSError):
        return ""
