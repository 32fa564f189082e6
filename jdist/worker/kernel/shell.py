"""The shell of a rank, whose input, pager and ``exit`` differ from a notebook's, as no user sits in front of it."""

import sys
from collections.abc import Callable
from typing import Any

from IPython import display
from IPython.core import debugger, page
from IPython.core.autocall import ZMQExitAutocall

from jdist.worker.compat.ipykernel import allows_input

_REFUSED = "input() and breakpoint() need one rank to talk to: run the cell on one rank only (-r RANK)"


def adapt(kernel: Any) -> None:
    """Change an ipykernel's shell; once, on the main thread, before user code runs."""
    kernel.raw_input = _with_hint(kernel, kernel.raw_input)
    kernel.getpass = _with_hint(kernel, kernel.getpass)
    sys.breakpointhook = _breakpointhook(kernel, sys.breakpointhook)
    shell: Any = kernel.shell
    exiter: Any = _ConsoleExit
    shell.exiter = shell.user_ns["exit"] = shell.user_ns["quit"] = exiter(shell)
    shell.user_ns_hidden.update(exit=shell.exiter, quit=shell.exiter)
    as_hook: Any = page.as_hook
    shell.set_hook("show_in_pager", as_hook(_display), 0)


def _display(text: Any, *_: Any, **__: Any) -> None:
    """Display what ``obj?`` pages: the reply in which ipykernel would send it has no reader."""
    publish: Any = display.publish_display_data
    publish(text if isinstance(text, dict) else {"text/plain": text})


class _ConsoleExit(ZMQExitAutocall):
    """``exit`` and ``quit``: a rank has other users, so only ``keep_kernel=False`` ends its process."""

    def __call__(self, keep_kernel: bool = True) -> None:
        super().__call__(keep_kernel)  # type: ignore[no-untyped-call]


def _with_hint(kernel: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """``method``, which raises with a hint where several ranks run the cell and none may ask for input."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        if not allows_input(kernel):
            raise RuntimeError(_REFUSED)
        return method(*args, **kwargs)

    return asked


def _breakpointhook(kernel: Any, attached: Callable[..., Any]) -> Callable[..., Any]:
    """IPython's debugger at the caller, or ``attached``, debugpy's hook, which does nothing without a front end."""

    def hook(*args: Any, **kwargs: Any) -> Any:
        if kernel.debugger is not None and kernel.debugger.is_started:
            return attached(*args, **kwargs)
        if not allows_input(kernel):
            raise RuntimeError(_REFUSED)
        set_trace: Any = debugger.set_trace
        return set_trace(sys._getframe(1), *args, **kwargs)

    return hook
