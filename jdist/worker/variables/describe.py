"""Describe a value where it is: in a few words, in one row of a table, as a histogram.

The `__repr__` of user code is never called: it may be slow, or wait for other ranks. Statistics run over chunks, so
describing a 10 GB tensor takes megabytes; very large ones are sampled. The elements of a histogram are counted on their
device: only the counts leave it.
"""

import ast
import builtins
import math
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from msgspec import Struct

from jdist.core.errors import UsageError, nearest
from jdist.core.messages.values import BinnedElements
from jdist.wire.values import tensors
from jdist.worker.variables.digests import CHUNK, chunks

_LONGEST = 80  # Characters.
_BUILTIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))


def summarize(value: object) -> str:
    """``12``, ``[1, 2]``, ``{'loss': tensor [] float32}``; a value of another type is shown as ``<Net>``."""
    text = _SUMMARY.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class _Summary(reprlib.Repr):
    def repr1(self, x: Any, level: int) -> str:
        if tensors.is_tensor(x):
            return f"tensor {list(x.shape)} {tensors.dtype_name(x)}"
        if type(x) not in _BUILTIN:
            return f"<{type(x).__name__}>"
        return super().repr1(x, level)


_SUMMARY = _Summary()
_SUMMARY.maxlevel = 2
_SUMMARY.maxstring = 60


THUMB = 64  # Of a 2-D tensor, at most this many rows and columns are sent along as a picture.
_EXACT = 1 << 27  # Elements up to which every one is read; of a larger tensor, as many in evenly spaced chunks.


class ValueDescription(Struct, frozen=True, kw_only=True):
    """A value in one row. Numbers are None where they make no sense. Mean, standard deviation (unbiased, as torch.std)
    and Euclidean norm leave NaN elements out, and are those of this rank's own part of a DTensor.
    """

    type: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    placement: str = ""  # Of a DTensor: `"(Shard(dim=0), Replicate()) on mesh dp=2,tp=2"`.
    nbytes: int | None = None  # Bytes held here: of a DTensor the local part, of a Module its parameters and buffers.
    length: int | None = None  # Of a str, list, dict, …
    mean: float | None = None
    std: float | None = None
    norm: float | None = None
    least: float | None = None  # Not of complex numbers; infinities count.
    greatest: float | None = None
    finite: tuple[float, float] | None = None  # The same among the finite ones, if there are several elements.
    nan_count: int | None = None
    sampled: bool = False  # The numbers above are those of a sample.
    detail: str = ""  # A number's value, a Module's parameter count, a DataFrame's column dtypes, …
    thumb: list[list[float]] | None = None  # A 2-D tensor's elements; of a large one, some, evenly spaced.


def evaluate(expr: str, namespace: Mapping[str, Any]) -> Any:
    """The value of an expression such as ``model.layer1.weight`` in a rank's namespace.

    Raises UsageError naming what is missing and the nearest existing name; what the user's code raises comes through.
    """
    try:
        tree = ast.parse(expr.strip(), mode="eval")
    except (SyntaxError, ValueError) as e:
        raise UsageError(f"{expr!r} is no expression: {e.args[0]}") from None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}  # by the expression itself
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for name in (node.id for node in nodes):
        if name not in namespace and name not in bound and not hasattr(builtins, name):
            raise UsageError(f"there is no name {name!r} on this rank{_nearest(name, namespace)}")
    names = dict(namespace)
    try:
        return eval(compile(tree, "<expression>", "eval"), names)  # noqa: S307  # the rank's owner wrote it
    except AttributeError as e:
        raise UsageError(_no_attribute(expr, e)) from e
    except (KeyError, IndexError) as e:
        raise UsageError(_no_item(expr, tree.body, names, e)) from e


def describe(obj: Any) -> ValueDescription:
    """One row about ``obj``; never raises for a kind it does not know."""
    if tensors.is_tensor(obj):
        return _describe_tensor(obj)
    if isinstance(obj, torch.nn.Module):
        return _describe_module(obj)
    kind, package = type(obj).__name__, type(obj).__module__.partition(".")[0]
    if package == "numpy" and hasattr(obj, "dtype"):
        return _describe_array(obj)
    if package == "pandas" and hasattr(obj, "columns"):
        dtypes = ", ".join(f"{name} {dtype}" for name, dtype in zip(obj.columns, obj.dtypes, strict=True))
        return ValueDescription(type=kind, shape=tuple(obj.shape), detail=_short(dtypes))
    if package == "pandas" and hasattr(obj, "shape"):
        return ValueDescription(type=kind, shape=tuple(obj.shape), dtype=str(getattr(obj, "dtype", "")))
    if obj is None or isinstance(obj, (bool, int, float, complex)):
        return ValueDescription(type=kind, detail=_short(repr(obj)))
    length = len(obj) if hasattr(type(obj), "__len__") else None
    if isinstance(obj, (str, bytes)):
        return ValueDescription(type=kind, length=length, detail=_short(repr(obj[:80])))
    return ValueDescription(type=kind, length=length)


def _nearest(word: object, known: Iterable[object]) -> str:
    """The nearest known name as a question, or the list of all if that is short."""
    names = [str(k) for k in list(known) if not str(k).startswith("_")]
    text = nearest(str(word), names)
    return text if len(names) <= 12 or "did you mean" in text else ""


def _no_attribute(expr: str, error: AttributeError) -> str:
    owner = error.obj
    names = dir(owner) if owner is not None else []
    if isinstance(owner, torch.nn.Module):
        names = [name for name, _ in owner.named_children()] + names
    close = nearest(str(error.name), names)
    hint = close if "did you mean" in close else ""
    return f"{expr}: a {type(owner).__name__} has no {error.name!r} on this rank{hint}"


def _no_item(expr: str, node: ast.expr, names: dict[str, Any], error: LookupError) -> str:
    """The error's text, with the container's keys or length if they can be read without calling anything."""
    inner = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    if isinstance(node, ast.Subscript) and isinstance(inner, ast.Name):
        owner_text = ast.unparse(node.value)
        try:
            owner = evaluate(owner_text, names)
        except UsageError as deeper:
            return str(deeper)
        if isinstance(error, KeyError) and isinstance(owner, Mapping):
            return f"{owner_text} has no key {error.args[0]!r} on this rank{_nearest(error.args[0], owner)}"
        if hasattr(owner, "__len__"):
            return f"{expr}: {error}; {owner_text} has length {len(owner)} on this rank"
    return f"{expr}: {type(error).__name__}: {error}"


def elements_of(obj: Any) -> torch.Tensor | None:
    """The elements of a tensor or an array, of a DTensor those of this rank's part; None if torch cannot compute them.

    They are on the device on which they were. An array is copied only if torch cannot share its memory.
    """
    if tensors.is_tensor(obj):
        local = _local(obj)
        return local if local.layout == torch.strided and not local.is_meta else None
    if type(obj).__module__.partition(".")[0] != "numpy" or not hasattr(obj, "dtype"):
        return None
    numeric = obj.dtype.kind in "biufc" and obj.dtype.isnative and obj.dtype.itemsize <= 16
    if not numeric or obj.dtype.name in ("longdouble", "clongdouble", "float128", "complex256"):
        return None
    np = sys.modules["numpy"]
    # torch knows neither negative strides nor read-only memory; such an array is copied.
    fit = isinstance(obj, np.ndarray) and obj.flags.writeable and min(obj.strides, default=0) >= 0
    return torch.from_numpy(np.asarray(obj) if fit else np.array(obj))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if tensors.is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return local.detach()


def _describe_tensor(tensor: torch.Tensor) -> ValueDescription:
    placement, local, detail = "", _local(tensor), ""
    if tensors.is_dtensor(tensor):
        placement = placement_of(tensor)
        detail = f"local {list(local.shape)}"
    elif local.layout != torch.strided:
        detail = str(local.layout).removeprefix("torch.")
    return ValueDescription(
        type=type(tensor).__name__,
        shape=tuple(tensor.shape),
        dtype=tensors.dtype_name(tensor),
        device=str(tensor.device),
        placement=placement,
        nbytes=tensors.nbytes(local) if tensors.is_plain(local) else None,
        detail=detail,
        **_numbers(elements_of(local)),
    )


def placement_of(tensor: Any) -> str:
    """How a DTensor is laid out: ``"(Shard(dim=0), Replicate()) on mesh dp=2,tp=2"``."""
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or [f"dim{i}" for i in range(mesh.ndim)]
    sizes = ",".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))
    return f"({', '.join(map(repr, tensor.placements))}) on mesh {sizes}"


def _describe_array(array: Any) -> ValueDescription:
    kind, shape, nbytes = type(array).__name__, tuple(array.shape), int(array.nbytes)
    numbers = _numbers(elements_of(array))
    return ValueDescription(type=kind, shape=shape, dtype=str(array.dtype), nbytes=nbytes, **numbers)


def _describe_module(module: torch.nn.Module) -> ValueDescription:
    parameters = list(module.parameters())
    held = [*parameters, *module.buffers()]
    count = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    frozen = f", {count - trained:,} of them frozen" if trained != count else ""
    return ValueDescription(
        type=type(module).__name__,
        dtype=", ".join(sorted({tensors.dtype_name(p) for p in parameters})),
        device=", ".join(sorted({str(t.device) for t in held})),
        nbytes=sum(t.numel() * t.element_size() for t in held),
        detail=f"{count:,} parameters{frozen}",
    )


def _numbers(tensor: torch.Tensor | None) -> dict[str, Any]:
    """The computed fields of a tensor's :class:`ValueDescription`; none where torch cannot compute with its dtype."""
    if tensor is None:
        return {}
    numel = tensor.numel()
    if not numel:
        return {"nan_count": 0}
    found: dict[str, Any] = {"sampled": numel > _EXACT}
    try:
        if tensor.dim() == 2:
            found["thumb"] = _thumb(tensor)
        # One row a chunk, and one wait for the device at the end.
        stacked = torch.stack([_moments(chunk) for chunk in sample(tensor)]).double().cpu().T
        counts, means, m2s, squares, nans, least, greatest = stacked
    except (NotImplementedError, RuntimeError):
        return {}
    found["nan_count"] = int(nans.sum())
    count = int(counts.sum())
    if count:
        found["norm"] = math.sqrt(squares.sum())
        if not tensor.is_complex():
            mean = float(counts.dot(means)) / count  # Chan, Golub & LeVeque (1979): moments of a union
            m2 = float(m2s.sum() + counts.dot((means - mean) ** 2))
            found["mean"] = mean
            ends = float(least.min()), float(greatest.max())
            found |= {"least": ends[0], "greatest": ends[1]}
            found["std"] = math.sqrt(m2 / (count - 1)) if count > 1 else None
            if numel > 1:
                found["finite"] = ends if all(map(math.isfinite, ends)) else _finite_ends(tensor)
    return found


def sample(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements in chunks: all of them, or of a very large tensor evenly spaced chunks that stand for it."""
    numel, wanted = tensor.numel(), _EXACT // CHUNK
    starts = [0] if numel <= _EXACT else [i * (numel - CHUNK) // (wanted - 1) for i in range(wanted)]
    size = numel if numel <= _EXACT else CHUNK
    return (piece for start in starts for piece in chunks(tensor, start, start + size))


def widened(chunk: torch.Tensor) -> torch.Tensor:
    """The chunk in the widest floating-point dtype that its device computes with."""
    return chunk.to(torch.float32 if chunk.device.type == "mps" else torch.float64)


def _finite_ends(tensor: torch.Tensor) -> tuple[float, float] | None:
    """The least and the greatest finite element; None if there is none."""
    ends = []
    for chunk in sample(tensor):
        wide = widened(chunk)
        odd = ~wide.isfinite()
        ends.append(torch.stack([wide.masked_fill(odd, math.inf).min(), wide.masked_fill(odd, -math.inf).max()]))
    least, greatest = torch.stack(ends).double().cpu().T
    found = float(least.min()), float(greatest.max())
    return found if found[0] <= found[1] else None


def _moments(chunk: torch.Tensor) -> torch.Tensor:
    """[count, mean, sum of squared deviations, sum of squares, NaN count, least, greatest] of a chunk, where it is."""
    size = widened(chunk.abs() if chunk.is_complex() else chunk)
    nan = size.isnan()
    nans = nan.sum()
    count = size.numel() - nans
    kept = size.masked_fill(nan, 0)
    mean = kept.sum() / count.clamp(min=1)
    deviations = (kept - mean).masked_fill_(nan, 0)
    ends = (size.masked_fill(nan, math.inf).min(), size.masked_fill(nan, -math.inf).max())
    found = (count, mean, deviations.dot(deviations), kept.dot(kept), nans, *ends)
    return torch.stack([x.to(size.dtype) for x in found])


def _thumb(tensor: torch.Tensor) -> list[list[float]]:
    """The elements of a matrix, or at most THUMB x THUMB of them, evenly spaced."""
    for dim, size in enumerate(tensor.shape):
        if size > THUMB:
            tensor = tensor.index_select(dim, torch.arange(THUMB, device=tensor.device) * (size - 1) // (THUMB - 1))
    found: list[list[float]] = (tensor.abs() if tensor.is_complex() else tensor).double().tolist()
    return found


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


_MOST_BINS = 1024


def bin_elements(obj: Any, low: float, high: float, bins: int) -> BinnedElements:
    """Count the elements of a tensor or an array by bin. Raises UsageError if it has none that can be ordered."""
    if not (low < high and math.isfinite(low) and math.isfinite(high) and 0 < bins <= _MOST_BINS):
        raise UsageError(f"no histogram has {bins} bins from {low:g} to {high:g}")
    elements = elements_of(obj)
    if elements is None or elements.is_complex():
        raise UsageError(f"the elements of a {type(obj).__name__} have no histogram on this rank")
    counts = torch.zeros(bins + 4, dtype=torch.int64, device=elements.device)
    for chunk in sample(elements):
        counts += _count(widened(chunk), low, high, bins)
    *inside, outside, negative, positive, nan = counts.tolist()
    return BinnedElements(tuple(inside), nan, negative, positive, outside)


def _count(chunk: torch.Tensor, low: float, high: float, bins: int) -> torch.Tensor:
    """The counts of the bins, of what is outside, and of negative and positive infinities and NaN.

    Not by torch.histc, which refuses to run on a GPU while deterministic algorithms are asked for.
    """
    scale = 1.0 if math.isfinite(high - low) else 0.5  # the difference of the ends may be too large for a float
    width = (high * scale - low * scale) / bins
    place = (chunk * scale - low * scale).div_(width).floor_()
    place.masked_fill_((place >= bins) & (chunk <= high), bins - 1)
    place.masked_fill_((place < 0) | (place >= bins), bins)
    place.masked_fill_(chunk == -math.inf, bins + 1).masked_fill_(chunk == math.inf, bins + 2)
    place.masked_fill_(chunk.isnan(), bins + 3)
    return torch.bincount(place.long(), minlength=bins + 4)
