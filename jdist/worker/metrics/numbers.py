"""Numbers as cells log them: made floats at once, or, for a tensor on a GPU, as soon as it has been copied.

``item()`` of a tensor on a GPU waits until all that was queued there is done. So the tensor is copied to pinned memory
behind that work, and read when the copy is done.
"""

import operator
from typing import Any

import numpy as np
import torch

from jdist.core.errors import UsageError

MOST_STEP = 2**62


class DeviceNumber:
    """A number that is on its way from a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = tensor.detach().to("cpu", non_blocking=True)  # into pinned memory, in the order of the stream
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> float | None:
        """The number; None if it has not been copied yet. Raises RuntimeError if the device has failed."""
        return float(self._host.item()) if self._copied.query() else None


def number(name: str, value: Any) -> float | DeviceNumber:
    """What was logged under ``name``. Raises UsageError if it is not one real number."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(name, value)
    is_array = isinstance(value, np.ndarray)
    if is_array and value.size != 1:
        raise _refused(name, f"an array of shape {list(value.shape)}", f"log one number, such as {name}={name}.mean()")
    if isinstance(value, str | bytes | complex | np.complexfloating) or not hasattr(value, "__float__"):
        raise _refused(name, f"{value!r:.60} ({type(value).__name__})", "log a number or a tensor of one element")
    try:
        return float(value.item() if is_array else value)
    except (TypeError, ValueError, OverflowError) as e:
        raise _refused(name, f"{value!r:.60} ({type(value).__name__})", str(e)) from None


def _of_tensor(name: str, value: torch.Tensor) -> float | DeviceNumber:
    if value.numel() != 1:
        what = f"a tensor of shape {list(value.shape)}"
        raise _refused(name, what, f"log one number, such as {name}={name}.mean()")
    if value.is_complex():
        raise _refused(name, f"a tensor of {value.dtype}", f"log a real number, such as {name}={name}.abs()")
    placements = getattr(value, "placements", ())
    if any(not placement.is_replicate() for placement in placements):
        raise _refused(name, f"a DTensor placed {tuple(placements)}", f"log {name}={name}.full_tensor()")
    if value.is_meta:
        raise _refused(name, "a tensor on the meta device", "it has no value")
    if placements:
        value = value.to_local()  # type: ignore[attr-defined]
    return DeviceNumber(value) if value.is_cuda else float(value.item())


def whole_step(step: Any) -> int:
    """The step. Raises UsageError if it is not a whole number of 63 bits."""
    try:
        found = operator.index(step)
    except TypeError:
        what = f"{step!r:.60} ({type(step).__name__})"
        raise UsageError(
            f"jdist.log: step is {what}; it must be an integer. Numbers are logged by name: jdist.log(loss=…, step=i)"
        ) from None
    if not -MOST_STEP < found < MOST_STEP:
        raise UsageError(f"jdist.log: step {found} is too large")
    return found


def _refused(name: str, what: str, instead: str) -> UsageError:
    return UsageError(f"jdist.log: {name} is {what}, not one number; {instead}")
