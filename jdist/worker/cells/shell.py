"""The shell of a rank, whose input, pager and ``exit`` differ from a notebook's, as no user sits in front of it."""

import builtins
import contextlib
import functools
import gc
import pdb  # noqa: T100 — its class is adapted; nothing stops here
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import IPython
from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.display import publish_display_data

from jdist.core.errors import Remedy, UsageError
from jdist.worker import process
from jdist.worker.cells import display
from jdist.worker.compat.ipykernel import allows_input, give_no_input, show_traceback

_DEBUG = Remedy("debug", "run cells in the frames in which ranks have failed")


class InputRefused(UsageError, RuntimeError):
    """A cell on several ranks, or in the background, asks for input. Shown as one line without a traceback."""

    def __init__(self, what: str, effect: str, others: Sequence[Remedy] = ()):
        ranks = "" if process.rank() is None else str(process.rank())
        message = f"{what} needs a cell that runs on one rank, and not in the background"
        super().__init__(message, remedies=[Remedy("run_cell", effect, ranks), *others])


def adapt(kernel: Any) -> None:
    """Change an ipykernel's shell; once, on the main thread, before user code runs."""
    shell: Any = kernel.shell
    kernel.raw_input = _only_on_one_rank(kernel, _until_stopped(kernel), "input()", "answer it there")
    kernel.getpass = _only_on_one_rank(kernel, kernel.getpass, "getpass()", "answer it there")
    _adapt_debuggers(kernel, shell)
    _show_exits_without_hint(shell)
    display.adapt_formatters(shell)
    _judge_own_semicolon(shell.displayhook)
    give_no_input()
    exiter: Any = _ConsoleExit
    shell.exiter = shell.user_ns["exit"] = shell.user_ns["quit"] = exiter(shell)
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)  # IPython's hint, after a SystemExit
    shell.user_ns_hidden.update(exit=shell.exiter, quit=shell.exiter)
    as_hook: Any = page.as_hook
    shell.set_hook("show_in_pager", as_hook(_display), 0)


def keep_names(shell: Any, names: Mapping[str, Any]) -> None:
    """Keep ``names``, which change with each world, through ``%reset`` in each of its forms.

    They are not the user's own names, so ``%who`` does not list them, and ``%reset_selective`` does not remove them. A
    full reset binds them again, and so does the start of each cell if one was deleted. It also binds those of IPython's
    without which no result can be shown (``globals().clear()``).
    """
    magics: Any = shell.magics_manager.registry["NamespaceMagics"]
    start_anew, list_own = shell.init_user_ns, magics.who_ls

    def init_user_ns() -> None:
        start_anew()
        shell.user_ns.update(names)

    def who_ls(parameter_s: str = "") -> list[str]:
        return [name for name in list_own(parameter_s) if name not in names or shell.user_ns[name] is not names[name]]

    def bind_missing(*_: object) -> None:
        if "_oh" not in shell.user_ns:
            init_user_ns()
            shell.user_ns["__builtins__"] = builtins  # as IPython has it; Python's own default is a dict, a user's name
            shell.user_ns.setdefault("__name__", "__main__")
        shell.user_ns.update((name, value) for name, value in names.items() if name not in shell.user_ns)

    shell.init_user_ns = init_user_ns
    shell.events.register("pre_run_cell", bind_missing)
    magics.who_ls = shell.magics_manager.magics["line"]["who_ls"] = who_ls


def _places_of_last_error(shell: Any) -> list[tuple[Any, str]]:
    """The attributes that hold the last error, or the result of the last cell with its error.

    The traceback of an error keeps alive the frames it went through and those that called them, with their variables.
    """
    places: list[tuple[Any, str]] = [(sys, name) for name in ("last_type", "last_value", "last_traceback", "last_exc")]
    places += [(shell.InteractiveTB, "tb"), (shell.SyntaxTB, "last_syntax_error"), (shell, "last_execution_result")]
    return places


def forget_last_error(shell: Any) -> None:
    """Free the frames of the last error, unless the user's own names still refer to them."""
    for owner, name in _places_of_last_error(shell):
        if owner is not sys:
            setattr(owner, name, None)
        elif hasattr(sys, name):  # %debug asks whether there is one
            delattr(sys, name)
    gc.collect()  # IPython's frames in a traceback refer to the error


@contextlib.contextmanager
def last_error_kept(shell: Any) -> Iterator[None]:
    """Restore the last error and the last result after the block."""
    missing, places = object(), _places_of_last_error(shell)
    before = [getattr(owner, name, missing) for owner, name in places]
    try:
        yield
    finally:
        for (owner, name), value in zip(places, before, strict=True):
            if value is not missing:
                setattr(owner, name, value)
            elif hasattr(owner, name):
                delattr(owner, name)


def _display(text: Any, *_: Any, **__: Any) -> None:
    """Display what ``obj?`` pages: the reply in which ipykernel would send it has no reader."""
    publish: Any = publish_display_data
    publish(text if isinstance(text, dict) else {"text/plain": text})


class _ConsoleExit(ZMQExitAutocall):
    """``exit`` and ``quit``: a rank has other users, so only ``keep_kernel=False`` ends its process."""

    def __call__(self, keep_kernel: bool = True) -> None:
        super().__call__(keep_kernel)  # type: ignore[no-untyped-call]


def _only_on_one_rank(
    kernel: Any, function: Callable[..., Any], what: str, effect: str, others: Sequence[Remedy] = ()
) -> Callable[..., Any]:
    """``function``, which raises InputRefused where several ranks run the cell and none may ask for input."""

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if not allows_input(kernel):
            raise InputRefused(what, effect, others)
        return function(*args, **kwargs)

    return asked


def _until_stopped(kernel: Any) -> Callable[..., Any]:
    """The kernel's ``raw_input``, which finds the end of all input once a cell was interrupted while it asked: a loop
    that reads and evaluates, such as ``code.interact``, asks again after each interrupt.
    """
    ask = kernel.raw_input
    stopped: object = None

    def asked(prompt: str = "") -> Any:
        nonlocal stopped
        cell = kernel.get_parent("shell").get("header", {}).get("msg_id")
        if cell is not None and stopped == cell:
            raise EOFError("the cell was interrupted")
        try:
            return ask(prompt)
        except KeyboardInterrupt:
            stopped = cell
            raise

    return asked


def _show_exits_without_hint(shell: Any) -> None:
    """Show a SystemExit as one line, without IPython's hint to use %tb, which a user would type in another kernel."""
    show = shell.showtraceback

    def showtraceback(*args: Any, exception_only: bool = False, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if exception_only and isinstance(error, SystemExit):
            lines = shell.InteractiveTB.get_exception_only(type(error), error)
            show_traceback(shell, type(error), error, [line.rstrip() for line in lines])
        else:
            show(*args, exception_only=exception_only, **kwargs)

    shell.showtraceback = showtraceback


def _judge_own_semicolon(hook: Any) -> None:
    """Have a value be silenced by a semicolon at the end of its own cell.

    IPython looks at the newest cell, which may have run in a paused frame of this one, and may not even be Python.
    """
    newest: Callable[[], bool] = hook.quiet

    def quiet() -> bool:
        cell = getattr(getattr(hook.exec_result, "info", None), "transformed_cell", None)
        try:
            return bool(hook.semicolon_at_end_of_expression(cell)) if cell else newest()
        except (tokenize.TokenError, SyntaxError):
            return False

    hook.quiet = quiet


def _adapt_debuggers(kernel: Any, shell: Any) -> None:
    """Have every debugger that asks for input say at once where it cannot be used; breakpoints pause the rank."""
    post_mortem = shell.debugger

    def debug_last_error(force: bool = False) -> Any:
        if allows_input(kernel):
            return post_mortem(force)
        if shell.call_pdb and sys.exc_info()[1] is not None:  # %pdb: the error itself is what is reported
            print("jdist: %pdb starts only in a cell that runs on one rank", file=sys.stderr)
            return None
        raise InputRefused("%debug", "start in the frame that failed there", [_DEBUG])

    shell.debugger = debug_last_error
    in_pdb: Any = pdb.Pdb
    in_pdb.interaction = _only_on_one_rank(kernel, in_pdb.interaction, "a debugger", "debug it there", [_DEBUG])
    in_ipython: Any = IPython
    in_ipython.embed = _only_on_one_rank(kernel, in_ipython.embed, "IPython.embed()", "debug it there")
