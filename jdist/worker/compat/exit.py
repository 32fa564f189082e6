"""The one place where jdist uses what Python keeps private of how an interpreter ends, as multiprocessing does."""

import atexit
import threading
from typing import Any


def join_threads() -> None:
    """Wait for threads that are no daemons, and for the tasks of executors; on the main thread."""
    private: Any = threading
    private._shutdown()


def run_exit_functions() -> None:
    """Call what was registered with :mod:`atexit`, the last first; errors are printed."""
    private: Any = atexit
    private._run_exitfuncs()
