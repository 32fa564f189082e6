"""A context in which widgets are written as if no message of a front end had caused them."""

import contextvars
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ParentlessContext:
    """Runs functions, from any thread, as if no message had caused them."""

    def __init__(self, kernel: Any):
        self._context = contextvars.copy_context()
        parent = getattr(kernel, "_shell_parent", None)  # the public way would change other threads' parent, too
        if isinstance(parent, contextvars.ContextVar):
            self._context.run(parent.set, {})

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this context."""
        return self._context.copy().run(function, *args, **kwargs)

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function that does so whenever it is called."""
        return lambda *args, **kwargs: self.run(function, *args, **kwargs)
