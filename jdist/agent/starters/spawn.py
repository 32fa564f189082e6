"""SpawnStarter: each worker is an interpreter of its own, where forking is unwise; one spare is kept warm."""

import logging
import os
import signal
import subprocess
import sys

from jdist.agent.starters.base import ProcessRequest
from jdist.agent.starters.fork import WARM, preload, preload_environment
from jdist.agent.starters.prewarm import PreloadedProcess
from jdist.core.errors import LaunchError

_log = logging.getLogger("jdist.agent")

_WORKER = "jdist.worker.main:main"


class SpawnStarter:
    """Starts processes as fresh interpreters. A warm spare, if there is one, becomes the next worker at once."""

    def __init__(self) -> None:
        self._spare: PreloadedProcess | None = None

    async def start(self, request: ProcessRequest) -> int:
        spare = self._spare
        if spare is not None and spare.is_loaded and request.entry == _WORKER:
            self._spare = None
            try:
                started = await spare.start(request)
            except (OSError, LaunchError):  # it has ended
                spare.close()
            else:
                spare.release()
                return started.pid
        log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 — starting it takes a millisecond
                [sys.executable, "-P", "-m", "jdist.worker", request.entry],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **request.env},
                start_new_session=True,
            )
        finally:
            os.close(log)
        process.returncode = 0  # the agent's reaper waits for it, not Popen
        if process.stdin is not None:
            process.stdin.write(request.spec + b"\n")
            process.stdin.close()
        return process.pid

    async def warm(self) -> None:
        if self._spare is not None:
            return
        spare = self._spare = PreloadedProcess.spawn("spare", [*preload(), *WARM], preload_environment())
        try:
            await spare.load(None)  # for as long as cells stop it
        except LaunchError as e:
            _log.warning("no warm spare: %s", e)
            spare.close()
            self._spare = None
        else:
            spare.signal(signal.SIGCONT)  # a cell may have stopped it when it was done

    def pause(self) -> None:
        if self._spare is not None and not self._spare.is_loaded:
            self._spare.signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._spare is not None and not self._spare.is_loaded:
            self._spare.signal(signal.SIGCONT)

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None
