"""List the names that cells have bound on a rank, without reading a value's contents, and delete some.

No device is waited for, and no code of the user's runs. A class may define ``__class__``, ``__len__``, ``__repr__`` or
``__getattr__`` as it likes. So only the real type of an object is looked at, and only types of Python, torch, numpy and
pandas are asked for more.
"""

import contextlib
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from msgspec.structs import replace
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from jdist.core.errors import describe_error
from jdist.core.messages.values import ListVariables, VariableFacts, VariableList
from jdist.wire.values import tensors
from jdist.worker.variables.describe import describe, placement_of
from jdist.worker.variables.digests import digest_of, digests

_LONGEST_NAME = 200  # Characters; a longer name is not listed.
_LONGEST = 80  # Characters of any other text.
_WHOLE = 60  # Characters of a string that is shown whole.
_BITS = 256  # Of an integer that is shown.
_MOST_PARTS = 10_000  # Tensors, modules and items that are visited to count the bytes of all values.
_MOST_ITEMS = 1000  # Items of a container whose bytes are counted.
_DEPTH = 3  # Containers in containers.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes, bytearray)
_OVERRIDES = {"__torch_function__", "__torch_dispatch__", "__getattribute__"}
_OVERRIDES |= {"shape", "dtype", "device", "layout", "is_meta", "requires_grad"}
_MRO = vars(type)["__mro__"].__get__
_DICT = vars(type)["__dict__"].__get__
_NAME = vars(type)["__name__"].__get__


def is_code(value: object) -> bool:
    """Whether the value is a module, a function or a class."""
    return issubclass(type(value), (types.ModuleType, type, *_FUNCTIONS))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the name matches one of a shell's patterns. ``*`` and ``?`` at the beginning match no underscore."""
    return any(fnmatchcase(name, p) and (p[:1] not in "*?[" or name[:1] != "_") for p in patterns)


class _TooMany(Exception):
    """There are more parts than may be visited."""


class MetadataReader:
    """Reads the metadata of the values of one listing, with a limit on the work for all of them together."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS

    def read(self, name: str, value: object) -> VariableFacts:
        """A variable's metadata; only its type where reading more fails."""
        kind = _type_name(value)
        facts: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # torch and numpy cannot answer for each kind of tensor and array
            facts = self._read(value)
        return VariableFacts(name, kind, **facts)

    def _read(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            return _read_tensor(value) if _is_known(kind) else {}
        if issubclass(kind, torch.nn.Module):
            return self._read_module(value)
        if (array := _class("numpy", "ndarray")) and issubclass(kind, array):
            shape, dtype = array.shape.__get__(value), array.dtype.__get__(value)
            return {"shape": shape, "dtype": _cut(str(dtype)), "nbytes": math.prod(shape) * dtype.itemsize}
        if _is_one_of(kind, (_class("pandas", "DataFrame"), _class("pandas", "Series"))):
            return {"shape": tuple(value.shape)}
        if text := _value(value):
            return text
        base = next((each for each in _CONTAINERS if issubclass(kind, each)), None)
        if base is None:
            return {}
        found: dict[str, Any] = {"length": base.__len__(value)}
        if _is_one_of(kind, (str, bytes)):
            found["detail"] = repr(value[: _WHOLE - 1]) + "…"
        held: dict[int, int] = {}
        with contextlib.suppress(_TooMany):
            self._collect(value, held, 0)
            found["nbytes"] = sum(held.values()) if held else None
        return found

    def _read_module(self, module: torch.nn.Module) -> dict[str, Any]:
        held: dict[int, int] = {}
        parameters: dict[int, torch.Tensor] = {}
        try:
            for each in self._modules(module):
                own = _tensors_of(each, "_parameters")
                parameters.update((id(p), p) for p in own)
                self._add([*own, *_tensors_of(each, "_buffers")], held)
        except _TooMany:
            return {}
        known = [p for p in parameters.values() if _is_known(type(p))]
        return {
            "dtype": _cut(", ".join(sorted({tensors.dtype_name(p) for p in known}))),
            "device": _cut(", ".join(sorted({str(p.device) for p in known}))),
            "nbytes": sum(held.values()),
            "detail": f"{sum(math.prod(p.shape) for p in known):,} parameters",
        }

    def _modules(self, module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """The module and all modules in it, each once."""
        seen = {id(module)}
        waiting = [module]
        while waiting:
            self._visit(1)
            each = waiting.pop()
            yield each
            inner = inspect.getattr_static(each, "_modules", None)
            for child in _values(inner) if type(inner) is dict else ():
                if issubclass(type(child), torch.nn.Module) and id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)

    def _collect(self, value: Any, held: dict[int, int], depth: int) -> None:
        """Add the bytes of the tensors in a small container to ``held``, by the tensor's identity."""
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._add([value], held)
        elif depth < _DEPTH and _is_one_of(kind, (list, tuple, dict)):
            if len(value) > _MOST_ITEMS:
                raise _TooMany
            self._visit(len(value))
            for item in _values(value) if kind is dict else tuple(value):
                self._collect(item, held, depth + 1)

    def _add(self, found: list[Any], held: dict[int, int]) -> None:
        self._visit(len(found))
        held.update((id(each), _nbytes(_local(each)) or 0) for each in found if _is_known(type(each)))

    def _visit(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooMany


def _read_tensor(tensor: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "shape": tuple(tensor.shape),
        "dtype": tensors.dtype_name(tensor),
        "device": str(tensor.device),
        "detail": "requires grad" if tensor.requires_grad else "",
    }
    local = _local(tensor)
    if local is not tensor:
        found |= {"placement": _cut(placement_of(tensor)), "detail": f"local {list(local.shape)}"}
    if local.layout != torch.strided:
        found["detail"] = str(local.layout).removeprefix("torch.")
    return {**found, "nbytes": _nbytes(local)}


def _local(tensor: Any) -> Any:
    """The rank's part of a DTensor; any other tensor as it is."""
    if not tensors.is_dtensor(tensor):
        return tensor
    with torch.no_grad():  # else this would be recorded for the backward pass
        return tensor.to_local()


def _nbytes(tensor: Any) -> int | None:
    """Bytes of a tensor's elements; None of a sparse one."""
    if tensor.layout != torch.strided:
        return None
    return 0 if tensor.is_meta else math.prod(tensor.shape) * int(tensor.dtype.itemsize)


def _is_known(kind: type) -> bool:
    """Whether a class of tensors is torch's own, or changes nothing of what is read, and has a shape."""
    if issubclass(kind, (UninitializedParameter, UninitializedBuffer)):
        return False
    for each in _MRO(kind):
        own = _DICT(each)
        module = own.get("__module__")
        if type(module) is str and module.partition(".")[0] == "torch":
            return True
        if not _OVERRIDES.isdisjoint(own):
            return False
    return False


def _value(value: Any) -> dict[str, Any]:
    """The whole text of a small plain value; of a large integer, its size."""
    kind = type(value)
    if kind is int and value.bit_length() > _BITS:
        return {"detail": f"{value.bit_length():,} bits"}
    if _is_one_of(kind, (bool, int, float, complex, type(None), torch.device, torch.dtype)):
        return {"value": repr(value)}
    if _is_one_of(kind, (str, bytes)) and len(value) < _WHOLE:
        return {"value": repr(value)}
    number = _class("numpy", "number")
    if number and issubclass(kind, number) and _DICT(kind).get("__module__", "numpy") == "numpy":
        return {"value": repr(value), "dtype": str(value.dtype)}
    return {}


def _is_one_of(kind: type, kinds: tuple[Any, ...]) -> bool:
    """As ``kind in kinds``, which would compare by an ``__eq__`` of the class's own class."""
    return any(kind is each for each in kinds)


def _class(module: str, name: str) -> Any:
    """A class of a module that has been loaded, None of any other: looking into a lazy module would load it."""
    found = sys.modules.get(module)
    return vars(found).get(name) if type(found) is types.ModuleType else None


def _tensors_of(module: torch.nn.Module, attribute: str) -> list[torch.Tensor]:
    found = inspect.getattr_static(module, attribute, None)
    return [each for each in _values(found) if issubclass(type(each), torch.Tensor)] if type(found) is dict else []


def _values(found: Mapping[Any, Any]) -> list[Any]:
    return list(dict.values(found))  # type: ignore[arg-type]


def _type_name(value: object) -> str:
    kind = type(value)
    if issubclass(kind, type):
        return "class"
    return "function" if issubclass(kind, _FUNCTIONS) else _cut(_NAME(kind))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def is_listable(name: object) -> bool:
    """Whether cells can use this key of a namespace as a name, and it is of a length that can be shown."""
    return type(name) is str and len(name) <= _LONGEST_NAME and name.isidentifier()


_MOST = 2000  # Names in one answer.

UserNames = Callable[[Mapping[str, Any]], Iterable[tuple[str, Any]]]


class VariableLister:
    """Answers `ListVariables`. ``user_names`` leaves out the names of IPython and of jdist."""

    def __init__(self, user_names: UserNames):
        self._user_names = user_names

    def list(
        self, query: ListVariables, namespace: Mapping[str, Any], frame: str, report: Callable[[int], None]
    ) -> VariableList:
        """``report`` takes the number of variables whose contents have been read."""
        # A copy, which is made at once: cells go on binding and deleting names.
        names = {name: value for name, value in dict(namespace).items() if is_listable(name)}
        found = dict(self._user_names(names))
        patterns = tuple(part.strip() for part in query.pattern.split(",") if part.strip())
        if patterns:
            chosen = sorted(name for name in found if matches(name, patterns))
        else:
            chosen = sorted(name for name, value in found.items() if name[:1] != "_" and not is_code(value))
        most = min(query.most, _MOST)
        listed = chosen[:most]
        reader = MetadataReader()
        variables = [reader.read(name, found[name]) for name in listed]
        if query.numbers or query.digests:
            for i, facts in enumerate(variables):
                variables[i] = _read_contents(facts, found[facts.name], query)
                report(i + 1)
        hidden = () if patterns else tuple(sorted(found.keys() - set(chosen))[:_MOST])
        return VariableList(tuple(variables), len(chosen) - len(listed), hidden, frame)


def _read_contents(facts: VariableFacts, value: Any, query: ListVariables) -> VariableFacts:
    """With numbers and a digest. The user's code may run here, as in pickling or in a ``__repr__``."""
    if facts.value:
        return facts  # that is all of it
    try:
        if query.numbers and facts.shape is not None:
            found = describe(value)
            facts = replace(facts, mean=_finite(found.mean), norm=_finite(found.norm))
        if query.digests and not is_code(value):
            entries = digests(value)
            pieces = (part.encode("utf-8", "surrogatepass") for entry in entries for part in entry)
            facts = replace(facts, digest=digest_of(*pieces))
    except BaseException as e:  # what it raises says nothing of the other variables; it may even exit
        facts = replace(facts, problem=describe_error(e)[:200])
    return facts


def _finite(number: float | None) -> float | None:
    """JSON has neither infinities nor NaN."""
    return number if number is None or math.isfinite(number) else None


def delete_names(names: tuple[str, ...], namespace: dict[str, Any]) -> int:
    """Delete the names that there are, as a cell on the rank; how many."""
    there = [name for name in names if name in namespace]
    for name in there:
        del namespace[name]
    return len(there)
