"""Stopping the main thread for good: it runs no more Python code, so that names do not change while they are saved.

It works whatever the handlers of signals and of exceptions are there. A main thread in C code is stopped when it comes
back.
"""

import contextlib
import ctypes
import threading
import time
from typing import Any

_kept: list[Any] = []  # What the interpreter still refers to once it has been called.


def stop_main_thread(timeout: float) -> bool:
    """Stop it at its next instruction; returns whether it has stopped within ``timeout`` seconds."""
    has_stopped = threading.Event()

    def stop(_: Any) -> int:
        has_stopped.set()
        while True:
            with contextlib.suppress(BaseException):  # handlers of signals run here, too
                time.sleep(3600.0)

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(stop)
    _kept.append(callback)
    if ctypes.pythonapi.Py_AddPendingCall(callback, None):
        return False  # too many calls are pending already
    return has_stopped.wait(timeout)
