"""Memory: fresh memory of this process into which bulk bytes are received and on which tensors are then built."""

from __future__ import annotations

import contextlib
import mmap


def fresh(nbytes: int) -> memoryview:
    """``nbytes`` writable zero bytes, page-aligned, given back to the system with the last tensor built on them.

    Nothing is touched before the bytes arrive. Huge pages where the system lends them: 100 MB in small ones cost as
    much time in page faults as in copying.
    """
    if nbytes == 0:
        return memoryview(bytearray())
    if not hasattr(mmap, "MAP_PRIVATE"):
        return memoryview(mmap.mmap(-1, nbytes))
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # this kernel was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
