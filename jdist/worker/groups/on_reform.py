"""Functions of the user's that are called on a rank whenever the world has been formed again.

jdist makes groups, meshes and DDP's connections anew by itself. What it cannot reach (groups held in C++, objects of
other libraries) a function can build again::

    import jdist

    @jdist.on_reform
    def rebuild(generation):
        global runtime
        runtime = make_runtime(dist.group.WORLD)

It is called on every rank that has it, on the main thread, between the setup cells of fresh ranks and the next cell, in
the order of registration. All ranks call at the same time, so it may use collectives if all have it.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from jdist.core.errors import UsageError
from jdist.worker import process

F = TypeVar("F", bound=Callable[..., Any])

_functions: dict[tuple[str, str], Callable[..., Any]] = {}


def on_reform(function: F) -> F:
    """Have ``function`` called on this rank after every re-forming of the world; for use in a cell, as a decorator.

    It takes the generation, a number, or nothing. Another of the same name takes its place. What it raises is printed
    and leaves the rank usable. Raises UsageError outside a rank, and for what cannot be called so.
    """
    if process.rank() is None:
        raise UsageError("jdist.on_reform is for cells on ranks; no world is formed here")
    _takes_generation(function)
    _functions[function.__module__, function.__qualname__] = function
    return function


def is_wanted() -> bool:
    """Whether there is a function to be called."""
    return bool(_functions)


def functions() -> dict[tuple[str, str], Callable[..., Any]]:
    """All of them, by module and name."""
    return dict(_functions)


def adopt(functions: dict[tuple[str, str], Callable[..., Any]]) -> None:
    """Take over those of the process before this one."""
    _functions.update(functions)


def call(generation: int) -> None:
    """Call them all; raises the first error once all have been called."""
    __tracebackhide__ = True
    first: Exception | None = None
    for function in list(_functions.values()):
        try:
            function(*((generation,) if _takes_generation(function) else ()))
        except Exception as e:
            print(f"jdist.on_reform: {function.__qualname__} failed on rank {process.rank()}: {type(e).__name__}: {e}")
            first = first or e
    if first is not None:
        raise first


def _takes_generation(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as e:
        raise UsageError(f"jdist.on_reform decorates a function, and {function!r} is none: {e}") from None
    for arguments in ((0,), ()):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return bool(arguments)
    raise UsageError(
        f"{function.__qualname__}{signature}: a function for jdist.on_reform takes the generation or nothing"
    )
