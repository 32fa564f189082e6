"""The one place where jdist uses what ipykernel and IPython keep private, each access a small function.

Checked on ipykernel 7.4.0 with IPython 9.18.1; tests/unit/worker/compat resolves every name of ``PRIVATE``.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ipykernel import displayhook, kernelbase, zmqshell
from ipykernel.iostream import IOPubThread

# Private methods and attributes, by the class whose objects have them.
PRIVATE = {
    "ipykernel.kernelbase.Kernel": "_allow_stdin _main_asyncio_lock _post_dummy_stop_aborting_message",
    "ipykernel.ipkernel.IPythonKernel": "_cancel_on_sigint",
    "ipykernel.iostream.IOPubThread": "_event_pipe _handle_subscription _is_master_process _really_send "
    "_setup_pipe_in _xpub_stream",
    "ipykernel.iostream.OutStream": "_buffers _flush _isatty",
    "ipykernel.zmqshell.ZMQInteractiveShell": "_last_traceback _showtraceback",
    "IPython.core.formatters.BaseFormatter": "_check_return _return_type",
    "IPython.core.interactiveshell.InteractiveShell": "_format_exception_for_storage _get_exc_info",
    "IPython.core.compilerop.CachingCompiler": "_filename_map",
    "IPython.core.ultratb.VerboseTB": "get_records",
}
_POLLIN = 1  # zmq.POLLIN.


# ---------------------------------------------------------------- kernel


def main_lock(kernel: Any) -> Any:
    """The asyncio lock that a cell holds while it runs."""
    return kernel._main_asyncio_lock


def wake_toolkit_loop(kernel: Any) -> None:
    """Have the event loop that ``%gui`` runs in place of ours yield: it looks at ipykernel's own queue only."""
    if kernel.eventloop is not None:
        kernel.shell_channel_thread.io_loop.add_callback(kernel._post_dummy_stop_aborting_message, None)


def allows_input(kernel: Any) -> bool:
    """Whether the cell that runs may ask for input."""
    return bool(kernel._allow_stdin)


def allow_input(kernel: Any, is_allowed: bool) -> None:
    """Say whether the cell that runs may ask for input."""
    kernel._allow_stdin = is_allowed


def give_no_input() -> None:
    """Have ``!command`` read an empty input: it gets a terminal for its output, at which no user can type."""
    module: Any = zmqshell
    original = module.system
    module.system = lambda command: original(f"{{ {command}\n}} </dev/null")


def replace_cancel_on_sigint(kernel: Any, cancel: Callable[..., Any]) -> None:
    """Have ``cancel(future)``, a context manager, decide what SIGINT does while a cell awaits."""
    kernel._cancel_on_sigint = cancel


# ---------------------------------------------------------------- shell


def cell_numbers(shell: Any) -> Mapping[str, int]:
    """The execution count of each cell, by the file name under which it was compiled; grows with every cell."""
    return cell_files(shell)


def cell_files(shell: Any) -> dict[str, int]:
    """The same, to which cells of another process can be added."""
    found: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    return found


def last_traceback(shell: Any) -> list[str]:
    """The traceback that was shown last, as IPython rendered it."""
    return list(shell._last_traceback or ())


def show_unless(shell: Any, show: Callable[[type[BaseException], BaseException, Any], bool]) -> None:
    """Have the shell show an error in its own way only if ``show(kind, error, traceback)`` has not shown it."""
    own = shell.showtraceback

    def showtraceback(exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        kind, error, tb = shell._get_exc_info(exc_tuple)
        if not show(kind, error, tb):
            own(exc_tuple, *args, **options)

    shell.showtraceback = showtraceback


def show_traceback(shell: Any, kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
    """Publish a traceback."""
    shell._showtraceback(kind, error, lines)


def reuse_shown_traceback(shell: Any, text_of: Callable[[BaseException], str]) -> None:
    """Have IPython's record of a failed cell take the traceback that was shown; it would render it a second time."""

    def recorded(error: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        return {"ename": type(error).__name__, "evalue": text_of(error), "traceback": last_traceback(shell)}

    shell._format_exception_for_storage = recorded


@contextmanager
def errors_as_text(shell: Any) -> Iterator[None]:
    """In the block, write the errors that the shell shows to standard error, with their lines of cells."""

    def show(_kind: type[BaseException], _error: BaseException, lines: list[str]) -> None:
        own = [line for line in lines[:-1] if "Cell In[" in line] or lines[-2:-1]
        print("\n".join([*own, *lines[-1:]]), file=sys.stderr)

    published, shell._showtraceback = shell._showtraceback, show
    try:
        yield
    finally:
        shell._showtraceback = published


def be_silent(kernel: Any) -> None:
    """In a forked child: send no kernel messages; write what would have been displayed as text."""

    def show(_kind: type[BaseException], error: BaseException, lines: list[str]) -> None:
        if not isinstance(error, SystemExit):
            print("\n".join(lines), file=sys.stderr)

    def publish(data: dict[str, Any], *_: Any, **__: Any) -> None:
        print(data.get("text/plain", ""))

    kernel.session.send = lambda *_, **__: None
    kernel.shell._showtraceback = show
    kernel.shell.display_pub.publish = publish


# ---------------------------------------------------------------- formatters


def unguarded_format(kind: Any) -> Callable[..., Any]:
    """The formatter's undecorated method, without IPython's own handling of exceptions."""
    found: Callable[..., Any] = kind.__call__.__wrapped__
    return found


def is_format(formatter: Any, made: Any) -> bool:
    """Whether this is what the formatter may return, with or without metadata."""
    first = made[0] if isinstance(made, tuple) and made else made
    return made is None or isinstance(first, formatter._return_type)


def check_format(formatter: Any, made: Any, obj: Any) -> Any:
    """What the formatter's caller gets."""
    return formatter._check_return(made, obj)


# ---------------------------------------------------------------- output streams


def flush_when_needed(stream: Any) -> None:
    """Let ``flush`` of an ipykernel OutStream return at once when there is nothing that could be overtaken."""
    wait_for_thread: Callable[[], None] = stream.flush
    send: Callable[[], None] = stream._flush
    sending = 0

    def counted() -> None:  # runs on the IOPub thread, also by its timer
        nonlocal sending
        sending += 1
        try:
            send()
        finally:
            sending -= 1

    def flush() -> None:
        if stream._buffers or sending:  # in this order: the buffers are emptied only after the count has gone up
            wait_for_thread()

    stream._flush = counted
    stream.flush = flush


def use_own_streams(stdout: Any, stderr: Any) -> None:
    """Have ipykernel flush and label these streams, whatever a cell has put into ``sys.stdout`` and ``sys.stderr``."""
    own = _OwnStreams(sys, stdout, stderr)
    for module in (displayhook, kernelbase, zmqshell):
        module.sys = own  # type: ignore[attr-defined]


class _OwnStreams:
    """The module ``sys`` but for its output streams."""

    def __init__(self, module: Any, stdout: Any, stderr: Any):
        vars(self).update(_module=module, stdout=stdout, stderr=stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["_module"], name, value)


def write_to_a_terminal(stream: Any, fd: int) -> None:
    """Have an ipykernel OutStream say that it is a terminal, with this file descriptor."""
    stream._isatty = True
    stream.fileno = lambda: fd


def open_pipes(thread: Any) -> None:
    """Open the sockets by which this thread and the IOPub thread itself pass messages to it.

    ipykernel opens a thread's when it is first used, for which a cell may have left no file descriptor.
    """
    thread.io_loop.add_callback(lambda: thread._event_pipe)
    assert thread._event_pipe is not None


def refuse_children() -> None:
    """Have IOPub threads take nothing from forked children; call before the kernel makes its own.

    ipykernel listens for them at a TCP port of the loopback, at which any user of the host can send a message of any
    size. A rank's children write to file descriptors instead (see `be_silent`).
    """
    threads: Any = IOPubThread
    original = threads._really_send

    def send(thread: Any, message: Any, *args: Any, **options: Any) -> None:
        if thread._is_master_process():
            original(thread, message, *args, **options)

    threads._setup_pipe_in = lambda _thread: None
    threads._really_send = send


def remember_subscribers() -> None:
    """Have each IOPub thread remember that a subscriber came; call before the kernel makes its own."""
    threads: Any = IOPubThread
    original = threads._handle_subscription

    def handle(thread: Any, frames: list[bytes]) -> None:
        thread.has_subscriber = True
        original(thread, frames)

    threads.has_subscriber = False
    threads._handle_subscription = handle


def poll_until_subscribed(thread: Any, seconds: float) -> None:
    """Have the IOPub thread poll for its first subscriber, the agent, which takes the welcome for the sign to begin.

    ipykernel (7.4) sends on the socket behind its stream's back. A send may swallow the edge that tells of a
    subscriber, which then goes unseen until something else comes.
    """

    def poll() -> None:
        if thread.has_subscriber or thread._xpub_stream.closed():
            return
        thread._xpub_stream.flush(_POLLIN)
        thread.io_loop.call_later(seconds, poll)

    thread.io_loop.add_callback(poll)
