"""The handler of SIGABRT, in processes that abort in each kind of thread, and in those that end by a fault."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap

import pytest

DEADLINE = 60.0
BEGIN = """
import ctypes, os, signal, socket, sys, threading, time
from jdist.worker.session.crash import CrashHandler
libc = ctypes.CDLL(None)
told = os.fdopen(os.dup(1), "w")

def hand_over(number):
    frame = sys._current_frames()[threading.main_thread().ident]
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    print("handed over", number, "in" if "work" in names else "out", file=told, flush=True)

line = socket.socket(fileno=int(sys.argv[1]))
CrashHandler(hand_over, line).install()

def thread_that_aborts():
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, libc.abort, None)

def work():
"""


INTERRUPTED = """
handler = CrashHandler(lambda number: (os.kill(os.getpid(), signal.SIGINT), hand_over(number)), line)
handler.install()
os.abort()
"""


def run(code: str, begin: str = BEGIN) -> tuple[int, str, str]:
    """The exit code of a process that runs ``code`` in a function, what was told, and what came on the line."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    body = textwrap.indent(textwrap.dedent(code), "    ")
    with ours, theirs:
        ended = subprocess.run(
            [sys.executable, "-c", f"{begin}{body}\nwork()", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        theirs.close()
        text = b""
        while packet := ours.recv(1 << 16):
            text += packet
    return ended.returncode, ended.stdout, text.decode()


@pytest.mark.parametrize(
    "code",
    {
        "a thread of C's own, while the main thread waits in C": "thread_that_aborts()\nlibc.pause()",
        "a thread of C's own, while the main thread computes": "thread_that_aborts()\nwhile True: pass",
        "the main thread, with the interpreter": "os.abort()",
        "the main thread, in C without it": "libc.abort()",
        "a signal from elsewhere": "os.kill(os.getpid(), signal.SIGABRT)\ntime.sleep(100)",
        "raise": "getattr(libc, 'raise')(int(signal.SIGABRT))",
        "a thread of Python's": "t = threading.Thread(target=libc.abort)\nt.start()\nt.join()",
        "two threads at once": "thread_that_aborts()\nthread_that_aborts()\nlibc.pause()",
        "an interrupt meanwhile": INTERRUPTED,
        "faulthandler that the user enables": "import faulthandler\nfaulthandler.enable()\nos.abort()",
        "faulthandler that the user disables": "import faulthandler\nfaulthandler.disable()\nos.abort()",
    }.values(),
)
def test_names_are_handed_over_before_an_abort_ends_the_process(code: str) -> None:
    assert run(code)[:2] == (-signal.SIGABRT, "handed over 6 in\n")


def test_the_line_tells_of_a_failure_even_if_python_cannot_run() -> None:
    code, told, line = run("os.abort()", BEGIN.replace("print(", "(lambda *_, **__: os._exit(7))("))
    assert (code, told) == (7, "")
    assert "Fatal Python error: Aborted" in line
    assert "in work" in line


UNWINDING = """
import faulthandler, fcntl, termios
reader, writer = os.pipe()
size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
os.write(writer, bytes(size - 1500))
faulthandler.enable(writer, all_threads=True)
has_begun, may_end = threading.Event(), threading.Event()

def deep(levels):
    if levels:
        return deep(levels - 1)
    has_begun.set()
    may_end.wait()

def is_full():
    count = ctypes.c_int()
    fcntl.ioctl(reader, termios.FIONREAD, count)
    return count.value > size - 20

thread = threading.Thread(target=deep, args=(500,))
thread.start()
has_begun.wait()
thread_that_aborts()
while not is_full():
    time.sleep(0.001)
may_end.set()
thread.join()
while os.read(reader, 4096):
    pass
"""
"""A full pipe holds faulthandler up in the middle of the thread's stack, which is gone when it reads on."""


def test_stacks_of_threads_that_go_on_are_not_read() -> None:
    """They change meanwhile, so that reading them can end the process by a fault before it has saved its names."""
    code, told, line = run("thread_that_aborts()\nlibc.pause()")
    assert (code, told) == (-signal.SIGABRT, "handed over 6 in\n")
    assert "Fatal Python error: Aborted" in line
    assert "in work" not in line, "the main thread has not failed"
    assert run(UNWINDING)[:2] == (-signal.SIGABRT, "handed over 6 in\n")


@pytest.mark.parametrize("disable", ["", "import faulthandler\nsaved = [(n, signal.getsignal(n)) for n in (8, 11)]\n"])
def test_a_fault_ends_the_process_without_a_handover(disable: str) -> None:
    """Memory may be damaged. faulthandler still reports where it was, unless the user has disabled it."""
    if disable:
        disable += "faulthandler.disable()\n[signal.signal(n, h) for n, h in saved if h is not None]\n"
    code, told, line = run(f"{disable}ctypes.string_at(0)")
    assert (code, told) == (-signal.SIGSEGV, "")
    assert ("Fatal Python error: Segmentation fault" in line) == (not disable)


def test_a_fault_in_the_handover_ends_the_process() -> None:
    faulty = BEGIN.replace("def hand_over(number):", "def hand_over(number):\n    libc.strlen(None)")
    assert run("os.abort()", faulty)[:2] == (-signal.SIGSEGV, "")
    raising = BEGIN.replace("def hand_over(number):", "def hand_over(number):\n    raise SystemExit")
    assert run("os.abort()", raising)[:2] == (-signal.SIGABRT, "")


def test_a_child_hands_nothing_over() -> None:
    forked = """
    pid = os.fork()
    if not pid:
        os.abort()
    print(os.waitpid(pid, 0)[1], flush=True)
    """
    assert run(forked) == (0, "6\n", "")
    executed = """
    import subprocess
    print(subprocess.run([sys.executable, "-c", "import os; os.abort()"], stderr=subprocess.DEVNULL).returncode)
    """
    assert run(executed) == (0, "-6\n", "")


def test_a_handler_of_the_users_own_takes_the_place_of_this_one() -> None:
    own = """
    signal.signal(signal.SIGABRT, lambda *_: (print("mine", flush=True), os._exit(3)))
    os.kill(os.getpid(), signal.SIGABRT)
    time.sleep(100)
    """
    assert run(own) == (3, "mine\n", "")


def test_code_that_restores_all_handlers_keeps_those_that_python_does_not_know() -> None:
    restored = """
    import faulthandler
    from jdist.worker.cells import signals

    def restore():
        saved = {n: signal.getsignal(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}}
        signal.signal(signal.SIGTERM, lambda *_: None)
        for number, handler in saved.items():
            if handler is not None:
                signal.signal(number, handler)

    faulthandler.register(signal.SIGRTMAX, open(os.devnull, "w"))
    restore()
    os.kill(os.getpid(), signal.SIGRTMAX)
    signals.outlive(wanted=True)
    restore()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)
    print("alive", flush=True)
    signals.outlive(wanted=False)
    restore()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)
    """
    assert run(restored)[:2] == (-signal.SIGTERM, "alive\n")
