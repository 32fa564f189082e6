"""Functions that are pickled by value keep the file name of their code, which leads from a line to its cell.

cloudpickle has omitted the name since version 3.1.3, so that equal functions have equal pickles on every machine.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle


def reduce_code(code: CodeType) -> Any:
    """What ``reducer_override`` of a cloudpickle pickler returns for a code object."""
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make_code, (make, args, code.co_filename)


def make_code(make: Callable[..., CodeType], args: tuple[Any, ...], filename: str) -> CodeType:
    """The code object; called as it is unpickled."""
    return make(*args).replace(co_filename=filename)
