"""Join: nobody is started; the user runs one line on each node, in any order and at any time."""

from __future__ import annotations

from collections.abc import Awaitable

from jdist.launch.base import Launcher, Plan


class JoinLauncher(Launcher):
    """Says what is to be run on each node."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self._line = ""

    async def launch(self, join_line: Awaitable[str]) -> None:
        self._line = await join_line

    def describe(self) -> str:
        """The line to paste. By way of a pipe, since what stands in argv can be read by other users of the node."""
        if not self._line:
            return ""
        place = f"--node-rank {self.plan.first} " if self.plan.first else ""
        fork = "" if self.plan.settings.fork else "--no-fork "
        return (
            "run this on each node, in any order and at any time (whoever has the line can join; it expires):\n"
            f"echo {self._line} | jdist join {place}{fork}-"
        )

    def failures(self) -> dict[int, str]:
        """A node that was refused may come again."""
        return {}

    async def end(self) -> None:
        """The line is of no use once the controller has ended."""
