"""Introspection of a rank's names: which begin with what is being typed, and what one of them is. Runs beside cells.

Of the user's code, it calls only ``__dir__``, and ``__getattr__`` on the way to the object before a dot. It prints no
value that has to be copied from a device, or that a user's ``__repr__`` makes.
"""

import builtins
import contextlib
import inspect
import keyword
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jdist.core.messages.values import Completed

_MOST = 200  # Names that are offered.
_NAME = re.compile(r"(?:^|[^\w.\])}\"'])((?:[^\W\d]\w*\.)*)([^\W\d]\w*)?$")
_KEY = re.compile(r"(?:^|[^\w.])((?:[^\W\d]\w*\.)*[^\W\d]\w*)\[\s*([\"'])([^\"'\\\[\]]*)$")
_NOTHING = object()
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_LONGEST = 20_000  # Characters of what is said about a name, and of its value.
_SHORT = 200
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SIZED = (str, bytes, list, tuple, dict, set, frozenset)


def complete(code: str, cursor: int, namespace: Mapping[str, Any]) -> Completed:
    """Complete a name, an attribute (``model.lay``) or a dict's key (``batch["im``) at the end of ``code[:cursor]``."""
    line = code[:cursor].rsplit("\n", 1)[-1]
    fragment, found = _keys(line, namespace) or _names(line, namespace) or ("", {})
    chosen = sorted(name for name in found if name.startswith(fragment))
    if not fragment.startswith("_"):
        chosen = [name for name in chosen if not name.startswith("_")] or chosen
    chosen = chosen[:_MOST]
    return Completed(tuple(chosen), cursor - len(fragment), cursor, tuple(found[name] for name in chosen))


def find(name: str, namespace: Mapping[str, Any]) -> Any:
    """The object of a name with dots. Raises KeyError or AttributeError; a property on the way is not called."""
    first, *rest = name.split(".")
    found = namespace[first] if first in namespace else vars(builtins)[first]
    for attribute in rest:
        static = inspect.getattr_static(found, attribute, _NOTHING)
        found = static if isinstance(static, property) else getattr(found, attribute)
    return found


def _names(line: str, namespace: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    """The typed part of the last name, and ``{name: type}`` of all names that could stand there."""
    match = _NAME.search(line)
    if match is None:
        return None
    path, fragment = match[1].rstrip("."), match[2] or ""
    if not path:
        known = {name: _kind(value) for name, value in {**vars(builtins), **namespace}.items()}
        return (fragment, dict.fromkeys(keyword.kwlist, "keyword") | known) if fragment else None
    try:
        of = find(path, namespace)
        return fragment, {name: _kind(inspect.getattr_static(of, name, _NOTHING)) for name in dir(of)}
    except Exception:  # a __dir__ or __getattr__ of the user's may raise anything: then there is nothing to offer
        return fragment, {}


def _keys(line: str, namespace: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    match = _KEY.search(line)
    if match is None:
        return None
    with contextlib.suppress(KeyError, AttributeError):
        of = find(match[1], namespace)
        if isinstance(of, dict):
            return match[3], {key: _kind(value) for key, value in list(of.items()) if isinstance(key, str)}
    return None


def _kind(value: object) -> str:
    if value is _NOTHING:
        return ""
    if isinstance(value, type):
        return "class"
    return "function" if isinstance(value, _FUNCTIONS) else type(value).__name__


# ---------------------------------------------------------------- what a name is


def introspect(name: str, namespace: Mapping[str, Any], detail: int = 0) -> str:
    """A few lines about the object of a name with dots; "" if there is no such name."""
    try:
        found = find(name, namespace)
    except Exception:  # also what a __getattr__ of the user's may raise
        return ""
    kind = type(found)
    signature = _read(inspect.signature, found) if callable(found) and not isinstance(found, torch.nn.Module) else ""
    path = _read(inspect.getsourcefile, found)  # no file where it was defined in a cell
    lines = {
        "Type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "Signature": f"{name}{signature}" if signature else "",
        "Value": _value(found),
        "Length": str(len(found)) if isinstance(found, _SIZED) else "",
        "File": path if os.path.exists(path) else "",
        "Docstring": "" if isinstance(found, (torch.Tensor, *_PLAIN)) else inspect.getdoc(found) or "",
        "Source": _read(inspect.getsource, found) if detail else "",
    }
    parts = ((f"{head}:\n" if "\n" in value else f"{head + ':':<11}") + value for head, value in lines.items() if value)
    text = "\n".join(parts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST:,} characters more"


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


def _read(inspect_by: Callable[[Any], object], found: object) -> str:
    """What a function of :mod:`inspect` finds, "" where it finds nothing."""
    try:
        return str(inspect_by(found) or "")
    except (TypeError, ValueError, OSError):
        return ""
