"""Local: one agent for each node on this machine. Each dials the controller as a remote agent would."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable

from jdist.launch.base import Launcher, LaunchPlan
from jdist.launch.support import last_words, reap

_END_TIMEOUT = 5.0


class LocalLauncher(Launcher):
    """Starts ``jdist join`` on this machine, once per node, each in a session of its own."""

    is_remote = False

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._env = {**os.environ, **dict(plan.settings.env)}
        self._agents: dict[int, subprocess.Popen[bytes]] = {}  # Agents by node rank.

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start the agents at once, so that they import while the controller starts, and send them the join line."""
        for node_rank in self.plan.node_ranks:
            self._agents[node_rank] = self._start(node_rank)
        line = await join_line
        for agent in self._agents.values():
            _send_line(agent, line)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another agent in place of one that has ended."""
        self._agents[node_rank] = self._start(node_rank)
        _send_line(self._agents[node_rank], join_line)
        return True

    def command(self, node_rank: int) -> list[str]:
        """Command line that starts a node's agent."""
        command = [sys.executable, "-P", "-m", "jdist", "join", "--node-rank", str(node_rank), "-"]
        if not self.plan.settings.fork:
            command.insert(-1, "--no-fork")
        return command

    def _start(self, node_rank: int) -> subprocess.Popen[bytes]:
        log = os.open(self.plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            agent = subprocess.Popen(
                self.command(node_rank),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        finally:
            os.close(log)
        reap(agent)
        return agent

    def failures(self) -> dict[int, str]:
        """Agents that ended, with the end of their shared log."""
        ended = {n: a.returncode for n, a in self._agents.items() if a.poll() is not None}
        return {n: f"its agent ended with code {code}: {self._log_end()}" for n, code in ended.items()}

    def _log_end(self) -> str:
        with open(self.plan.log, errors="replace") as f:
            return last_words(f.read())

    async def end(self) -> None:
        """Terminate agents that still run."""
        for agent in self._agents.values():
            if agent.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    agent.stdin.close()
            if agent.poll() is None:
                agent.terminate()
        for agent in self._agents.values():
            try:
                await asyncio.to_thread(agent.wait, _END_TIMEOUT)
            except subprocess.TimeoutExpired:
                agent.kill()


def _send_line(agent: subprocess.Popen[bytes], line: str) -> None:
    """Send the agent its join line."""
    if agent.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it ended already: failures() says why
            agent.stdin.write(line.encode() + b"\n")
            agent.stdin.close()
