"""Nvidia-smi: the driver's own tool, asked by a process of its own that has a deadline.

Not its library, NVML, which is a call into the driver from the agent's own process: where a GPU has fallen off the bus
such a call does not return and cannot be ended, and the agent holds the node's ranks. And not torch, which would make a
CUDA context, hundreds of MB of the GPU's memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Literal

_TOOL = "nvidia-smi"
_GRACE = 1
"""Seconds after the deadline when the tool ends also if this process, which should have ended it, is gone."""


def is_there() -> bool:
    """Whether there is the tool, which says nothing of GPUs yet."""
    return shutil.which(_TOOL) is not None


def query(what: Literal["gpu", "compute-apps"], fields: Sequence[str], seconds: float) -> str:
    """What it prints of GPUs, or of the processes that use them: a line each, ``fields`` between commas, without units.

    Blocks, for ``seconds`` at most. Raises OSError, TimeoutError among them, with the tool's own words.
    """
    command = [_TOOL, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    if shutil.which("timeout"):
        command = ["timeout", "-s", "KILL", str(int(seconds) + _GRACE), *command]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _abandon(process)
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if process.returncode:
        lines = (complaint or said).strip().splitlines()
        raise OSError(lines[0] if lines else f"ended with code {process.returncode}")
    return said


def _abandon(process: subprocess.Popen[str]) -> None:
    """Kill it and whatever it has started, and do not wait: one that hangs in the driver ends when that lets it go."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.returncode = -signal.SIGKILL  # whoever reaps this process's children waits for it
