"""Partition: cuts a value into parts along a dimension, for scatter, and joins parts, for gather; imports no torch."""

import sys
from collections.abc import Sequence
from typing import Any

from jdist.core.errors import UsageError
from jdist.wire.values import tensors


def bounds(length: int, index: int, parts: int) -> tuple[int, int]:
    """First and one-past-last of a part, as torch.tensor_split cuts: the first ``length % parts`` are one longer."""
    if parts < 1 or not 0 <= index < parts:
        raise UsageError(f"there is no part {index} of {parts}")
    short, longer = divmod(length, parts)
    start = index * short + min(index, longer)
    return start, start + short + (index < longer)


def slice_along(obj: Any, dim: int, index: int, parts: int) -> Any:
    """Part ``index`` of ``parts`` of a tensor, array, DataFrame, list, tuple, or of each value of a dict of those.

    Tensors and arrays give a view, not a copy. Raises UsageError when ``obj`` has no such dimension.
    """
    if isinstance(obj, dict):
        return {key: slice_along(value, dim, index, parts) for key, value in obj.items()}
    if isinstance(obj, (list, tuple, range)):
        if dim not in (0, -1):
            raise UsageError(f"a {type(obj).__name__} has dimension 0 only; there is no dimension {dim}")
        start, stop = bounds(len(obj), index, parts)
        return obj[start:stop]
    shape = getattr(obj, "shape", None)
    if not isinstance(shape, tuple):
        raise UsageError(f"a {type(obj).__name__} cannot be cut into parts; scatter takes tensors, arrays and lists")
    if not -len(shape) <= dim < len(shape):
        raise UsageError(f"there is no dimension {dim}: the shape is {list(shape)}")
    dim %= len(shape)
    start, stop = bounds(shape[dim], index, parts)
    if tensors.is_tensor(obj):
        return obj.narrow(dim, start, stop - start)
    cut = (slice(None),) * dim + (slice(start, stop),)
    return obj.iloc[cut] if hasattr(obj, "iloc") else obj[cut]


def concatenate(values: Sequence[Any], dim: int = 0) -> Any:
    """One value of the ranks' parts, in the order given: tensors and arrays joined along ``dim`` (stacked when they
    are 0-dimensional), DataFrames, lists, tuples and ranges joined, dicts key by key, anything else as a list.

    Raises UsageError when the parts are of different kinds or do not fit together.
    """
    if not values:
        raise UsageError("there is nothing to put together: no rank gave a value")
    kinds = sorted({_kind(v) for v in values})
    if len(kinds) > 1:
        raise UsageError(f"the ranks' values are of different kinds ({', '.join(kinds)}); gather needs one kind")
    try:
        return _joined(kinds[0], values, dim)
    except (RuntimeError, ValueError, IndexError, TypeError) as e:
        shapes = ", ".join(str(list(getattr(v, "shape", (len(v),) if hasattr(v, "__len__") else ()))) for v in values)
        raise UsageError(f"the ranks' values (shapes {shapes}) cannot be joined along dimension {dim}: {e}") from e


def _kind(value: Any) -> str:
    if tensors.is_tensor(value):
        return "tensor"
    module = type(value).__module__.partition(".")[0]
    if module in ("numpy", "pandas") and hasattr(value, "shape"):
        return f"{module} {type(value).__name__}" if module == "pandas" else "array"
    for kind in (dict, list, tuple):
        if isinstance(value, kind):
            return kind.__name__
    return "list" if isinstance(value, range) else "object"


def _joined(kind: str, values: Sequence[Any], dim: int) -> Any:
    if kind == "tensor":
        torch = sys.modules["torch"]
        return (torch.stack if values[0].dim() == 0 else torch.cat)(list(values), dim)
    if kind == "array":
        np = sys.modules["numpy"]
        return (np.stack if values[0].ndim == 0 else np.concatenate)(list(values), dim)
    if kind.startswith("pandas"):
        return sys.modules["pandas"].concat(list(values), axis=dim)
    if kind == "list":
        return [item for value in values for item in value]
    if kind == "tuple":
        return tuple(item for value in values for item in value)
    if kind == "dict":
        keys = list(values[0])
        if any(set(v) != set(keys) for v in values):
            raise ValueError("their keys differ")
        return {key: concatenate([v[key] for v in values], dim) for key in keys}
    return list(values)
