"""Jobs: `jdist run` as a program, whose output a test reads as it comes."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 120.0


class Job:
    """A program that runs; both of its streams are read, as they come."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=env)
        self._lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(name,), name=f"job-{name}", daemon=True)
            for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        kept = self.out if name == "stdout" else self.err
        for line in getattr(self._process, name):
            kept.append(line.rstrip("\n"))
            self._lines.put((name, line.rstrip("\n")))

    @property
    def said(self) -> str:
        return "\n".join([*self.out, "--- stderr", *self.err])

    def until(self, pattern: str) -> re.Match[str]:
        """The first line, of those not seen yet, in which the pattern is found."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = self._lines.get(timeout=min(0.5, max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                assert self._process.poll() is None, f"it ended with {self._process.returncode}: {self.said}"
                assert time.monotonic() < deadline, f"no {pattern!r} in: {self.said}"
                continue
            if found is not None and (match := re.search(pattern, found[1])):
                return match

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Its exit code, once it has ended and all that it wrote has been read."""
        code = self._process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        self.close()
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def run_words(*words: str) -> list[str]:
    """The command line of `jdist run`."""
    return [sys.executable, "-P", "-m", "jdist", "run", *words]


class Jobs:
    """Starts jobs in a folder, and ends what a test has left running."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._jobs: list[Job] = []

    def start(self, *words: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> Job:
        """`jdist run` with these words, after those of another program if there are any."""
        job = Job([*before, *run_words(*words)], self.directory, env)
        self._jobs.append(job)
        return job

    def script(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return name

    def close(self) -> None:
        for job in self._jobs:
            job.close()


def jobs_in(directory: Path) -> Iterator[Any]:
    """For a fixture."""
    jobs = Jobs(directory)
    yield jobs
    jobs.close()
