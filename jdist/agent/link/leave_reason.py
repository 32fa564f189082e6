"""Departure: who has told this agent to end, as far as the node's scheduler knows."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping

from jdist.core.slurm import SlurmJob, parse_job

_ASK = 2.0
"""Seconds for Slurm's answer: it gives a job some time between SIGTERM and SIGKILL, 30 s unless set otherwise."""
_AGAIN = 0.1


async def why_terminated(environ: Mapping[str, str]) -> str:
    """A reason for a SIGTERM; in a job of Slurm's, with what that says about the job."""
    reason = "its agent was ended by SIGTERM"
    number = environ.get("SLURM_JOB_ID", "")
    job = await _ask(number) if number else None
    if job is None or job.phase == "running":  # then it was somebody's kill
        return reason
    advice = job.advice()
    return f"{reason}: {job.describe()}{'; ' if advice else ''}{advice}"


async def _ask(number: str) -> SlurmJob | None:
    """What Slurm says now. It ends all processes of a job, more than once, and so perhaps the one that asks it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ASK
    while (left := deadline - loop.time()) > 0:
        asking = ["scontrol", "show", "job", number, "-o"]
        try:
            said = await asyncio.to_thread(
                subprocess.run, asking, capture_output=True, text=True, check=False, timeout=left
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        job = parse_job(said.stdout)
        if job is not None or said.stderr:
            return job
        await asyncio.sleep(_AGAIN)
    return None
