"""Completion: the names of a rank that begin with what is being typed.

It runs beside cells, so none of the user's code is called but ``__dir__``, and ``__getattr__`` on the way to the object
before a dot.
"""

import builtins
import contextlib
import inspect
import keyword
import re
import types
from collections.abc import Mapping
from typing import Any

from jdist.core.messages.introspection import Completed

_MOST = 200
_NAME = re.compile(r"(?:^|[^\w.\])}\"'])((?:[^\W\d]\w*\.)*)([^\W\d]\w*)?$")
_KEY = re.compile(r"(?:^|[^\w.])((?:[^\W\d]\w*\.)*[^\W\d]\w*)\[\s*([\"'])([^\"'\\\[\]]*)$")
_NOTHING = object()
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


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
        known: dict[str, str] = dict.fromkeys(keyword.kwlist, "keyword")
        known |= {name: _kind(value) for name, value in vars(builtins).items()}
        known |= {name: _kind(value) for name, value in list(namespace.items())}
        return (fragment, known) if fragment else None
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
