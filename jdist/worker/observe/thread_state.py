"""Whether a thread waits in the operating system for another thread to wake it, seen from outside it."""

import platform
import time

# Number of the system call in which a condition variable waits. A sleep and a read are others.
_FUTEX = {"x86_64": "202", "aarch64": "98", "ppc64le": "221", "riscv64": "98"}
# Share of a core above which a thread does not wait: one that only waits for the GIL runs when it gets it.
_BUSY = 0.01
_ONCE = 20e-6  # Seconds of CPU time that a wait costs, however short it is.


def waits_for_a_thread(native_id: int) -> bool:
    """Whether the thread waits at a lock or condition, rather than sleeps, reads or computes.

    So does a thread that only waits for the GIL: ask twice, and for its CPU time in between.
    """
    try:
        with open(f"/proc/self/task/{native_id}/syscall") as f:
            call = f.read().split(None, 1)[0]
    except (OSError, IndexError):
        return _sleeps(native_id)
    number = _FUTEX.get(platform.machine())
    return call == number if number is not None else call not in ("running", "-1")


def _sleeps(native_id: int) -> bool:
    """Fallback without ``/proc/…/syscall``: True in interruptible sleep; cannot tell a lock from ``time.sleep``."""
    try:
        with open(f"/proc/self/task/{native_id}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "S"
    except (OSError, IndexError):
        return False


def cpu_seconds(ident: int) -> float:
    """CPU time of a thread (``threading.get_ident``), 0.0 where it is not known."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    except (OSError, AttributeError):
        return 0.0


def is_idle(cpu: float, seconds: float) -> bool:
    """Whether so much CPU time in so many seconds is a waiting thread's."""
    return cpu <= _BUSY * seconds + _ONCE
