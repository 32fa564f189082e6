"""Private names of torch by the feature of jdist that uses them. A torch that lacks one costs that feature alone.

No module that uses them looks one up when it is imported. Functions do, guarded by their :class:`Feature`.
"""

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from jdist.core.errors import UsageError
from jdist.core.messages.nodes import Lack
from jdist.core.settings import ADVICE

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MODULES = ("profiler", "rpc", "sharding", "step", "torch")  # Those of this folder that have features.
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
    """The same as far as this process has imported what they need, which takes no time."""
    loaded = [each for each in FEATURES if all(owner.partition(":")[0] in sys.modules for owner, _ in each.names)]
    return tuple(Lack(each.text, each.absent) for each in loaded if each.absent)
