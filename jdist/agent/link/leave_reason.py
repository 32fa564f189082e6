"""Leave reason: why Slurm is stopping this agent (preemption, time limit, cancel), as far as it says."""

import asyncio
import subprocess
from collections.abc import Mapping

from jdist.core.slurm import SlurmJob, parse_job

# Seconds for Slurm's answer: between SIGTERM and SIGKILL it gives a job 30 s, unless set otherwise.
_ANSWER_TIMEOUT = 2.0
_RETRY = 0.1


async def why_terminated(environ: Mapping[str, str]) -> str:
    """The reason for a SIGTERM; in a Slurm job, with the job's state."""
    reason = "its agent was ended by SIGTERM"
    number = environ.get("SLURM_JOB_ID", "")
    job = await _query_slurm(number) if number else None
    if job is None or job.phase == "running":  # the signal came from elsewhere
        return reason
    advice = job.advice()
    return f"{reason}: {job.describe()}{'; ' if advice else ''}{advice}"


async def _query_slurm(number: str) -> SlurmJob | None:
    """The job's state. Slurm signals all processes of a job, repeatedly, and so may end scontrol: then retry."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ANSWER_TIMEOUT
    while (left := deadline - loop.time()) > 0:
        command = ["scontrol", "show", "job", number, "-o"]
        try:
            answer = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False, timeout=left
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        job = parse_job(answer.stdout)
        if job is not None or answer.stderr:
            return job
        await asyncio.sleep(_RETRY)
    return None
