"""The shell of a rank: where it must differ from a notebook's own, because no user sits in front of it.

A request for input names the rank to run on; what a notebook's page would open in a pager is shown in the output;
``exit`` leaves the console that is attached to the rank, not the rank.
"""

import sys
from collections.abc import Callable
from typing import Any

from IPython import display
from IPython.core import debugger, page
from IPython.core.autocall import ZMQExitAutocall
from traitlets.config import Config

from jdist.worker.compat.ipykernel import allows_input

_REFUSED = "input() and breakpoint() need one rank to talk to: run the cell on one rank only (-r RANK)"


def adapt(kernel: Any) -> None:
    """Change an ipykernel's shell; once, on the main thread, before user code runs."""
    kernel.raw_input = _with_hint(kernel, kernel.raw_input)
    kernel.getpass = _with_hint(kernel, kernel.getpass)
    sys.breakpointhook = _breakpointhook(kernel, sys.breakpointhook)
    _page_in_output(kernel.shell)
    _stay_at_exit(kernel.shell)
    kernel.shell.config = _RankConfig(kernel.shell.config)


class _RankConfig(Config):
    """Answers no to ``"IPKernelApp" in get_ipython().config``, by which libraries learn whether widgets can be shown.

    tqdm.auto and its like then write text, which is shown by rank, rather than widgets, which no user could see.
    """

    def __contains__(self, key: Any) -> bool:
        return key != "IPKernelApp" and bool(super().__contains__(key))


def _with_hint(kernel: Any, method: Callable[..., str]) -> Callable[..., str]:
    """``method``, which raises with a hint where several ranks run the cell and none may ask for input."""

    def asked(prompt: str = "", *args: Any, **kwargs: Any) -> str:
        if not allows_input(kernel):
            raise RuntimeError(_REFUSED)
        return method(prompt, *args, **kwargs)

    return asked


def _breakpointhook(kernel: Any, attached: Callable[..., Any]) -> Callable[..., Any]:
    """IPython's debugger at the caller, or ``attached`` (debugpy's own hook) while a debugger front end is connected.

    debugpy's hook does nothing at all where none is.
    """
    set_trace: Any = debugger.set_trace

    def hook(*args: Any, **kwargs: Any) -> Any:
        if kernel.debugger is not None and kernel.debugger.is_started:
            return attached(*args, **kwargs)
        if not allows_input(kernel):
            raise RuntimeError(_REFUSED)
        return set_trace(sys._getframe(1), *args, **kwargs)

    return hook


def _stay_at_exit(shell: Any) -> None:
    """Have ``exit`` and ``quit`` end the rank's process only with ``keep_kernel=False``.

    A kernel's do by default, which is right where one notebook or console uses it. A rank has other users, too.
    """

    class ConsoleExit(ZMQExitAutocall):
        def __call__(self, keep_kernel: bool = True) -> None:
            shell.keepkernel_on_exit = keep_kernel
            shell.ask_exit()

    exiter: Any = ConsoleExit
    shell.exiter = exiter(shell)
    shell.user_ns["exit"] = shell.user_ns["quit"] = shell.exiter
    shell.user_ns_hidden.update(exit=shell.exiter, quit=shell.exiter)


def _page_in_output(shell: Any) -> None:
    """Display what ``obj?`` pages: the reply in which ipykernel would send it has no reader."""
    publish: Any = display.publish_display_data
    as_hook: Any = page.as_hook

    def show(text: Any, *_: Any, **__: Any) -> None:
        publish(text if isinstance(text, dict) else {"text/plain": text})

    shell.set_hook("show_in_pager", as_hook(show), 0)
