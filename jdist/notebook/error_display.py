"""Error display: IPython shows jdist's errors as their messages, whatever has replaced its hooks for exceptions.

An error of a cell reaches IPython's custom exception handler, before ``showtraceback``, which others replace, such as
``rich.traceback.install()``. Where magics and widgets call ``showtraceback`` themselves, it asks the error for its text
(``_render_traceback_``), and then calls the method that publishes the text, which others replace as well. That method,
``_showtraceback``, is the one private name of IPython that is used outside of jdist/worker/compat.
"""

import sys
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

from jdist.core import errors
from jdist.core.errors import JdistError


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
        _publish(shell, kind, error, lines)
        if shell.call_pdb and not _has_frame_of(magic, tb):
            shell.debugger(force=True)
        return lines

    def before_shown() -> None:
        _publish_next(shell)

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


def _publish(shell: Any, kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
    """Publish an error in these lines as the shell's class does, whatever has been put in the place of its method."""
    type(shell)._showtraceback(shell, kind, error, lines)  # noqa: SLF001 — there is no public way


def _publish_next(shell: Any) -> None:
    """If the method has been replaced: have the next error go past what has replaced it, if it is one of jdist's."""
    replaced = vars(shell).get("_showtraceback")
    if replaced is None:
        return

    def show(kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        shell._showtraceback = replaced  # noqa: SLF001 — there is no public way
        if isinstance(error, _OWN):
            _publish(shell, kind, error, lines)
        else:
            replaced(kind, error, lines)

    shell._showtraceback = show  # noqa: SLF001 — there is no public way
