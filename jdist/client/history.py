"""History: the steps that this client took on a cluster, in order, so that a script can repeat them.

It holds code and how it ended, never a value of a rank. Other clients' steps are not recorded.
"""

import ast
import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from jdist.client.run import CellRun
from jdist.core.errors import JdistError
from jdist.wire.values import tensors

MOST = 10_000  # The newest steps that are kept.
_LONGEST = 500  # Characters of a value that is kept as Python.
_MOST_ELEMENTS = 64


class CellStep(Struct, kw_only=True):
    """A cell that was sent to ``ranks`` of a world of ``world_size``."""

    number: int  # The run's number.
    code: str
    ranks: tuple[int, ...]
    world_size: int
    is_setup: bool = False
    title: str = ""  # Where the user sees it, such as the notebook's `In [7]`; empty for one that a program has run.
    state: Literal["running", "done", "failed"] = "running"
    why: str = ""  # The reason why it failed.
    is_inner: bool = False  # It ran in the frames of a paused run, or where a cell had failed.


class GroupStep(Struct, frozen=True):
    """A named group was made."""

    name: str
    ranks: tuple[int, ...]


class MeshStep(Struct, frozen=True):
    """The mesh was made."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]


class ValueStep(Struct, frozen=True):
    """A value of this process was bound as ``name`` on ``ranks``: whole, or cut along ``dim``."""

    name: str
    ranks: tuple[int, ...]
    text: str  # The value as Python; empty where that cannot be written, or is long.
    kind: str  # Its type, in words.
    dim: int | None = None


class BroadcastStep(Struct, frozen=True):
    """Rank ``src``'s value of ``name`` was bound on every rank."""

    name: str
    src: int


class Annotation(Struct, frozen=True):
    """A change of the cluster that no code on the ranks could make."""

    text: str


Step = CellStep | GroupStep | MeshStep | ValueStep | BroadcastStep | Annotation


class History:
    """Steps of one attached client; written on the link's loop, read from any thread."""

    def __init__(self, most: int = MOST):
        self._steps: deque[Step] = deque(maxlen=most)
        self._runs: dict[int, tuple[CellStep, CellRun]] = {}  # Cells that are not over.
        self._lock = threading.RLock()
        self.forgotten = 0  # The number of older steps that were dropped.

    @property
    def steps(self) -> tuple[Step, ...]:
        """Oldest first."""
        with self._lock:
            for number in [number for number, (_, run) in self._runs.items() if run.is_done]:
                self._record_end(number)
            return tuple(self._steps)

    def add(self, step: Step) -> None:
        with self._lock:
            self.forgotten += len(self._steps) == self._steps.maxlen
            self._steps.append(step)

    def add_cell(
        self, run: CellRun, code: str, world_size: int, *, is_setup: bool = False, is_inner: bool = False
    ) -> None:
        """Record a cell whose run has been accepted, and its end when it comes."""
        step = CellStep(number=run.number, code=code, ranks=tuple(run.ranks), world_size=world_size)
        step.is_setup, step.is_inner = is_setup, is_inner
        self.add(step)
        with self._lock:
            self._runs[run.number] = (step, run)
        run.watch(lambda message: self._record_end(step.number) if message is None else None)

    def add_values(self, values: Mapping[str, Any], ranks: tuple[int, ...], dim: int | None = None) -> None:
        """Record values that were pushed, or (with ``dim``) scattered."""
        for name, value in values.items():
            self.add(ValueStep(name, ranks, as_python(value), kind_of(value), dim))

    def entitle(self, run: int, title: str) -> None:
        """Record where the user sees the run's cell."""
        with self._lock:
            for step in reversed(self._steps):
                if isinstance(step, CellStep) and step.number == run:
                    step.title = title
                    return

    def _record_end(self, number: int) -> None:
        """Record how the run ended, and drop the run: it holds the ranks' values."""
        with self._lock:
            step, run = self._runs.pop(number, (None, None))
            if step is None or run is None:
                return
            try:
                run.check()
                step.state = "done"
            except JdistError as e:
                step.state, step.why = "failed", f"{type(e).__name__}: {e}".partition("\n")[0]


def as_python(value: Any) -> str:
    """The exact value as Python literals, or a small CPU tensor as ``torch.tensor(…)``; "" if it is neither."""
    if tensors.is_tensor(value):
        return _tensor(value)
    try:
        text = repr(value) if _size(value) <= _LONGEST else ""
        return text if 0 < len(text) <= _LONGEST and ast.literal_eval(text) == value else ""
    except (ValueError, RecursionError):  # inf and nan are written as names; a list may contain itself
        return ""


def _size(value: Any) -> float:
    """An upper bound for the length of a value's repr; infinite if it is long or not made of built-in types.

    No ``__repr__`` of the user's is called: it may take any time, and do anything.
    """
    kind = type(value)
    if kind in (str, bytes):
        return len(value)
    if kind in (list, tuple, set, dict) and len(value) <= _LONGEST:
        parts = [*value, *value.values()] if kind is dict else value
        total = 0.0
        for part in parts:
            total += 1 + _size(part)
            if total > _LONGEST:
                break
        return total
    if kind is int:
        return float(value.bit_length())
    return 1 if kind in (float, complex, bool, type(None)) else math.inf


def _tensor(value: Any) -> str:
    is_plain = type(value).__name__ == "Tensor" and str(value.layout) == "torch.strided" and not value.is_quantized
    if not is_plain or value.device.type != "cpu" or value.numel() > _MOST_ELEMENTS or value.requires_grad:
        return ""
    numbers = repr(value.tolist())
    if "nan" in numbers or "inf" in numbers or (value.numel() == 0 and value.dim() > 1):
        return ""
    return f"torch.tensor({numbers}, dtype={value.dtype})"


def kind_of(value: Any) -> str:
    """``Tensor [64, 3]``, ``DataFrame``."""
    try:
        shape = getattr(value, "shape", None)
    except BaseException:  # a property of the user's own may raise anything
        shape = None
    return type(value).__name__ + (f" {list(shape)}" if isinstance(shape, tuple) else "")
