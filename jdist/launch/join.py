"""Join: jdist starts nothing; the user runs one line on each node, in any order and at any time."""

from collections.abc import Awaitable

from jdist.launch.base import Launcher


class JoinLauncher(Launcher):
    """Prints the line to run on each node."""

    _line = ""  # The join line, once it is known.

    async def launch(self, join_line: Awaitable[str]) -> None:
        self._line = await join_line

    def instructions(self) -> str:
        """The line to paste. It uses a pipe because other users of the node can read argv."""
        if not self._line:
            return ""
        place = f"--node-rank {self.plan.first} " if self.plan.first else ""
        fork = "" if self.plan.settings.fork else "--no-fork "
        return (
            "run this on each node, in any order and at any time (whoever has the line can join; it expires):\n"
            f"echo {self._line} | jdist join {place}{fork}-"
        )

    def failures(self) -> dict[int, str]:
        """Always empty: a node that was refused may try again."""
        return {}

    async def end(self) -> None:
        """Nothing to do: the line is useless once the controller has ended."""
