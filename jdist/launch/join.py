"""Join: jdist starts nothing; the user runs one line on each node, in any order and at any time."""

import os
from collections.abc import Awaitable, Sequence
from pathlib import Path

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Settings
from jdist.launch.base import Launcher
from jdist.launch.form import LauncherForm, LauncherOption


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
            return f"run this {where} (the line is in a file):\njdist join {place}{fork}{path}"
        return (
            f"run this {where} (whoever has the line can join; it expires):\n"
            f"echo {self._line} | jdist join {place}{fork}-"
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
