"""The code of functions in a save: as bytecode for the Python that wrote it, and as source for any other.

Python's bytecode is different in each of its minor versions, and running that of another one crashes the process. So
the source of the cell or file that a function came from is saved beside it. Another Python compiles that, and takes the
code of the same function.
"""

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from jdist.core.errors import UsageError
from jdist.wire.values.objects import make_code, reduce_code

_VERSION = sys.version_info[:2]
_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")  # Functions in Python 3.11; later a part of those around them.

_Place = tuple[str, int, tuple[str, ...]]  # A function's qualified name, first line and arguments.


def reduce(code: CodeType, filename: str) -> Any:
    """What the reducer of a pickler returns for a code object, whose file is to be called ``filename``."""
    source = "".join(linecache.getlines(code.co_filename))
    _, args = reduce_code(code.replace(co_filename=filename))
    return make, (_VERSION, sys.intern(source), _place_of(code), args)


def make(version: tuple[int, int], source: str, place: _Place, args: tuple[Any, ...]) -> CodeType | None:
    """The code object; called as it is unpickled. Raises UsageError if it cannot be had in this Python."""
    if version == _VERSION:
        return make_code(*args)
    name, line, _ = place
    try:
        found = [code for code in _compiled(source, args[2]) if _place_of(code) == place]
    except (SyntaxError, ValueError):
        found = []
    if len(found) == 1:
        return found[0]
    if name.endswith(_INLINED):
        return None
    wrote, here = ".".join(map(str, version)), ".".join(map(str, _VERSION))
    why = f"line {line} has {len(found)} such functions" if found else "its source was not saved"
    raise UsageError(f"{name} is code of Python {wrote}, which Python {here} cannot run, and {why}")


def _place_of(code: CodeType) -> _Place:
    return code.co_qualname, code.co_firstlineno, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


@functools.lru_cache(maxsize=64)
def _compiled(source: str, filename: str) -> tuple[CodeType, ...]:
    """The functions in a source."""
    code = compile(source, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return tuple(_within(code))


def _within(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _within(const)
