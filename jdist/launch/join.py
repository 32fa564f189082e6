"""The launchers that need nothing but ``jdist join``: it is run here once for each node, or by the user on each node.

Nodes on this machine dial the controller as remote agents would. What the user runs may come in any order, at any time.
"""

import contextlib
import os
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, LauncherForm, LauncherOption, join_words
from jdist.launch.launch_program import LaunchProgram, ProgramLauncher, ProgramLog, last_words
from jdist.wire.processes import surroundings

RUN = "run this"  # The start of an instruction to the user, whose next line is the command.


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


class JoinLauncher(Launcher):
    """Prints the line to run on each node."""

    form = LauncherForm(
        options=(LauncherOption("--file", "File", "~/join-line", "The line is written there (mode 0600), not shown"),),
        arguments="",
    )
    _line = ""  # The join line, once it is known.

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        _file(settings.launcher_args)
        return super().complete(settings)

    async def launch(self, join_line: Awaitable[str]) -> None:
        self._line = await join_line
        if path := _file(self.plan.settings.launcher_args):
            try:
                _write(path, self._line)
            except OSError as e:
                raise LaunchError(f"the join line cannot be written to {path}: {e}") from None

    def instructions(self) -> str:
        """The line to paste. It uses a pipe because other users of the node can read argv."""
        if not self._line:
            return ""
        place = f"--node-rank {self.plan.first} " if self.plan.first else ""
        fork = "" if self.plan.settings.fork else "--no-fork "
        where = "on the node to add" if self.plan.first else "on each node, in any order and at any time"
        if path := _file(self.plan.settings.launcher_args):
            return f"{RUN} {where} (the line is in a file):\njdist join {place}{fork}{path}"
        return (
            f"{RUN} {where} (whoever has the line can join; it expires):\necho {self._line} | jdist join {place}{fork}-"
        )

    def failures(self) -> dict[int, str]:
        """Always empty: a node that was refused may try again."""
        return {}

    async def end(self) -> None:
        """Remove the file; the line itself is useless once the controller has ended."""
        await self.remove_leftovers()

    async def remove_leftovers(self) -> None:
        if path := _file(self.plan.settings.launcher_args):
            path.unlink(missing_ok=True)


def _write(path: Path, line: str) -> None:
    """Write the file at once, mode 0600: whoever waits for it reads the whole line."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    with open(partial, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(line)
    partial.rename(path)


def _file(args: Sequence[str]) -> Path | None:
    """The file into which the line is to be written, from ``--file PATH``; None: it is printed."""
    if not args:
        return None
    if len(args) != 2 or args[0] != "--file":
        raise UsageError(f"--launcher join understands -- --file PATH; not {' '.join(args)}")
    return Path(args[1]).expanduser().absolute()
