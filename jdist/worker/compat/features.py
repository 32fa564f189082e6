"""Features of the installed torch: what jdist can do with its private names, and what torch reports about itself.

A torch that lacks a private name costs the feature that uses it, and nothing else. No module looks such a name up when
it is imported. Functions do, guarded by their :class:`Feature`.

A process of its own, which ends with the answer, reports what torch can do on this node: asking CUDA's driver would
spoil one that goes on.
"""

import functools
import importlib
import pkgutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec
import torch

from jdist.core.errors import UsageError
from jdist.core.messages.nodes import Lack, TorchFacts
from jdist.core.settings import ADVICE, TorchFactsSpec
from jdist.wire.processes import set_name

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MODULES = ("profiler", "rpc", "sharding", "torch")  # Those of this folder that have features.
FEATURES: "list[Feature]" = []


class Feature:
    """What jdist can do with some private names of torch. ``text`` says what does not work without them.

    ``names`` are ``{"module" or "module:object": "name name"}``.
    """

    def __init__(self, text: str, names: dict[str, str]):
        self.text = text
        self.names = [(owner, name) for owner, listed in names.items() for name in listed.split()]
        FEATURES.append(self)

    @functools.cached_property
    def absent(self) -> tuple[str, ...]:
        """The names that the installed torch lacks; imports their modules."""
        return tuple(f"{owner.replace(':', '.')}.{name}" for owner, name in self.names if not _has(owner, name))

    def needed_by(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Have a function raise UsageError where a name is absent."""

        @functools.wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if self.absent:
                version, names = torch.__version__, ", ".join(self.absent)
                raise UsageError(f"{self.text} is not possible with torch {version}, which has no {names}. {ADVICE}")
            return function(*args, **kwargs)

        return checked

    def skips(self, function: Callable[_P, None]) -> Callable[_P, None]:
        """Have a function do nothing where a name is absent: one that torch's own behaviour can do without."""

        @functools.wraps(function)
        def skipped(*args: _P.args, **kwargs: _P.kwargs) -> None:
            if not self.absent:
                function(*args, **kwargs)

        return skipped


def _has(owner: str, name: str) -> bool:
    try:
        return hasattr(pkgutil.resolve_name(owner), name)
    except (ImportError, AttributeError):
        return False


def lacks() -> tuple[Lack, ...]:
    """The features that do not work with the installed torch; imports all that they need."""
    for name in _MODULES:
        importlib.import_module(f"{__package__}.{name}")
    return tuple(Lack(each.text, each.absent) for each in FEATURES if each.absent)


def lacks_of_loaded() -> tuple[Lack, ...]:
    """As :func:`lacks`, as far as this process has imported what they need, which takes no time."""
    loaded = [each for each in FEATURES if all(owner.partition(":")[0] in sys.modules for owner, _ in each.names)]
    return tuple(Lack(each.text, each.absent) for each in loaded if each.absent)


def main(spec_json: bytes) -> None:
    """Entry point of a process that reports torch's facts to the Unix socket in the spec, as one datagram."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("jdist-facts")
    report_to = msgspec.json.decode(spec_json, type=TorchFactsSpec).report_to
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reporter:
        reporter.connect(report_to)
        reporter.send(msgspec.json.encode(torch_facts()))


def torch_facts() -> TorchFacts:
    """What torch is and can do here. Asks CUDA's driver: not for a process from which others are forked."""
    import torch.cuda.nccl
    import torch.distributed

    trouble, gpus, nccl = "", 0, ""
    if torch.version.cuda is not None:
        try:
            torch.cuda.init()
            gpus = torch.cuda.device_count()
        except (RuntimeError, AssertionError) as e:  # no driver, one that is too old, none of the devices permitted
            trouble = str(e).strip().splitlines()[0]
        if torch.distributed.is_nccl_available():
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return TorchFacts(str(torch.__version__), torch.version.cuda or "", nccl, gpus, trouble, lacks())
