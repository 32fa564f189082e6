"""The main thread is stopped, whatever it does, and the process ends without a signal after it has handed over."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

DEADLINE = 60.0
BEGIN = """
import ctypes, os, signal, socket, sys, threading, time
from jdist.worker.session.crash import CrashHandler
from jdist.worker.session.handover import stop_main_thread
libc = ctypes.CDLL(None)
told = os.fdopen(os.dup(1), "w")
count, begun = 0, threading.Event()

def hand_over(number):
    first = count
    for _ in range(20):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.001)
    print("handed over", number, count == first, file=told, flush=True)

handler = CrashHandler(hand_over, socket.socket(fileno=int(sys.argv[1])))
handler.install()

def end():
    begun.wait()
    if stop_main_thread(SECONDS):
        print("stopped", end=", ", file=told, flush=True)
    handler.end()

threading.Thread(target=end, daemon=True).start()
"""
COMPUTING = """
begun.set()
while True:
    count += 1
"""
SWALLOWING = """
begun.set()
while True:
    try:
        while True: count += 1
    except BaseException:
        pass
"""
IGNORING = f"signal.signal(signal.SIGINT, signal.SIG_IGN){COMPUTING}"
IN_C = """
mutex = ctypes.create_string_buffer(40)
begun.set()
for _ in range(2): libc.pthread_mutex_lock(mutex)
count += 1
"""


@pytest.mark.parametrize(
    ("code", "seconds"),
    [(COMPUTING, DEADLINE), (SWALLOWING, DEADLINE), (IGNORING, DEADLINE), (IN_C, 0.05)],
    ids=["computing", "swallowing interrupts", "ignoring interrupts", "stuck in C"],
)
def test_the_main_thread_stands_still_while_names_are_handed_over(code: str, seconds: float) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = BEGIN.replace("SECONDS", str(seconds)) + code
    with ours, theirs:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        theirs.close()
        assert ours.recv(1 << 16) == b"", "faulthandler has nothing to report"
    assert (ended.returncode, ended.stderr) == (1, "")
    if code is IN_C:  # it may have been stopped just before
        assert ended.stdout.removeprefix("stopped, ") == "handed over 0 True\n"
    else:
        assert ended.stdout == "stopped, handed over 0 True\n"
