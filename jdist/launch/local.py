"""Local: one agent for each node on this machine. Each dials the controller as a remote agent would."""

import contextlib
import os
import sys
from collections.abc import Awaitable
from pathlib import Path

from jdist.launch.base import join_words
from jdist.launch.form import LauncherForm
from jdist.launch.launch_program import LaunchProgram, ProgramLauncher, ProgramLog, last_words
from jdist.wire.processes import surroundings


class LocalLauncher(ProgramLauncher):
    """Starts ``jdist join`` on this machine, once per node, each in a session of its own."""

    is_remote = False
    form = LauncherForm(arguments="")
    patience = 0.0

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Start the agents at once, so that they import while the controller starts, and send them the join line."""
        for node_rank in self.plan.node_ranks:
            self.start_agent(node_rank)
        line = await join_line
        for agent in self.programs.values():
            agent.send_line(line)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another agent in place of one that has ended."""
        self.start_agent(node_rank).send_line(join_line)
        return True

    def command(self, node_rank: int) -> list[str]:
        """Command line that starts a node's agent."""
        return [sys.executable, "-P", "-m", "jdist", *join_words(node_rank, fork=self.plan.settings.fork)]

    def start_agent(self, node_rank: int) -> LaunchProgram:
        """Start a node's agent, which waits for its join line.

        Whoever adds a node or brings one back, its ranks find files and modules as those do that were there before.
        """
        directory, env = None, dict(os.environ)
        if self.plan.controller:
            with contextlib.suppress(OSError):  # it has ended
                directory, env = surroundings(self.plan.controller)
        log, env = ProgramLog(self.plan.log), {**env, **dict(self.plan.settings.env)}
        agent = self.programs[node_rank] = LaunchProgram(self.command(node_rank), env, log, directory)
        return agent

    def why_ended(self, program: LaunchProgram, status: int) -> str:  # noqa: ARG002 — the agents share their log
        said = last_words(Path(self.plan.log).read_text(errors="replace"))
        return f"its agent ended with code {status}: {said}"
