"""Hooks of modules: torch numbers them by a counter of the process, so that equal modules differ between ranks.

A rank that registered a hook of its own, or was started later, has other numbers from then on. In a save, the hooks of
a unit are numbered in the order in which they are met.
"""

import copyreg
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

_ATTRIBUTES = frozenset(name for name, value in vars(nn.Module()).items() if type(value) is OrderedDict)


class HookNumbers:
    """The numbers of one unit's hooks."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._hooks: dict[int, OrderedDict[int, Any]] = {}  # Dicts of hooks by their id; held, so that it stays theirs.

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Attributes of a module, among them its dicts of hooks."""
        self._hooks.update((id(value), value) for name, value in attributes.items() if name in _ATTRIBUTES)

    def reduce(self, obj: Any) -> Any:
        """How a dict of hooks, or a handle of one, is pickled; None for anything else."""
        if type(obj) is OrderedDict and id(obj) in self._hooks:
            return OrderedDict, (), None, None, iter([(self._number(key), hook) for key, hook in obj.items()])
        if type(obj) is RemovableHandle:
            hooks, number, flags = obj.__getstate__()
            self._hooks.update((id(each), each) for each in (hooks, *flags) if each is not None)
            state = (hooks, self._number(number), flags)
            return copyreg.__newobj__, (RemovableHandle,), state  # type: ignore[attr-defined]
        return None

    def _number(self, hook: int) -> int:
        return self._numbers.setdefault(hook, len(self._numbers))
