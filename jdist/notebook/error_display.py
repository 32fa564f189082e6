"""Error display: IPython shows jdist's errors as their messages, whatever has replaced its hooks for exceptions.

An error of a cell reaches IPython's custom exception handler, before ``showtraceback``, which others replace, such as
``rich.traceback.install()``. Where magics and widgets call ``showtraceback`` themselves, it asks the error for its text
(``_render_traceback_``), and then calls the method that publishes the text, which others replace as well.
"""

import sys
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

from jdist.core import errors
from jdist.core.errors import JdistError
from jdist.worker.compat.error_hooks import publish_error, publish_next


class Interrupted(KeyboardInterrupt):
    """The user interrupted a magic: the notebook shows only that, without jdist's own frames."""

    def _render_traceback_(self) -> list[str]:
        errors.before_shown()
        return [f"KeyboardInterrupt{f': {self}' if str(self) else ''}"]


_OWN = (JdistError, Interrupted)


def show_shortly(shell: Any, magic: CodeType) -> Callable[[], None]:
    """Have a shell show jdist's errors as their messages; returns the way to end that.

    ``%pdb`` is not started for errors that come through the code ``magic``: their frames are all jdist's.
    """
    others, show_other = shell.custom_exceptions, shell.CustomTB

    def handle(
        shell: Any, kind: type[BaseException], error: Any, tb: TracebackType | None, tb_offset: int | None = None
    ) -> list[str]:
        if not isinstance(error, _OWN):
            lines: list[str] = show_other(kind, error, tb, tb_offset=tb_offset)
            return lines
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, tb  # for %debug and %tb
        sys.last_exc = error  # type: ignore[attr-defined]  # from Python 3.12 on
        lines = error._render_traceback_()
        publish_error(shell, kind, error, lines)
        if shell.call_pdb and not _has_frame_of(magic, tb):
            shell.debugger(force=True)
        return lines

    def before_shown() -> None:
        publish_next(shell, _OWN)

    shell.set_custom_exc((*_OWN, *others), handle)
    before, errors.before_shown = errors.before_shown, before_shown

    def undo() -> None:
        errors.before_shown = before
        if shell.custom_exceptions == (*_OWN, *others):
            shell.custom_exceptions, shell.CustomTB = others, show_other

    return undo


def _has_frame_of(code: CodeType, tb: TracebackType | None) -> bool:
    while tb is not None and tb.tb_frame.f_code is not code:
        tb = tb.tb_next
    return tb is not None
