"""A stand-in for nvidia-smi, which prints what a test says, for machines without GPUs."""

from __future__ import annotations

import os
from pathlib import Path

SCRIPT = """#!/bin/sh
echo "$1" >> "{folder}/asked"
if [ -e "{folder}/hangs" ]; then
  echo $$ >> "{folder}/hanging"
  sleep 1000  # a process of its own, which holds the output open
fi
case "$1" in
  --query-gpu=*) cat "{folder}/gpus" ;;
  --query-compute-apps=*) cat "{folder}/processes" ;;
esac
"""


class DriverTool:
    """A folder that is to be the first of PATH. It prints nothing until it is told to."""

    def __init__(self, folder: Path):
        self.folder = folder
        script = folder / "nvidia-smi"
        script.write_text(SCRIPT.format(folder=folder))
        script.chmod(0o755)
        for name in ("gpus", "processes", "asked", "hanging"):
            (folder / name).touch()

    @property
    def path(self) -> str:
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"

    @property
    def asked(self) -> list[str]:
        """What it was asked for, each time."""
        return (self.folder / "asked").read_text().splitlines()

    @property
    def hanging(self) -> list[int]:
        """The processes in which it has not come to an end."""
        return [int(line) for line in (self.folder / "hanging").read_text().split()]

    def prints(self, gpus: str, processes: str = "") -> None:
        """From now on; each at once or not at all, for whoever reads meanwhile."""
        for name, text in (("gpus", gpus), ("processes", processes)):
            new = self.folder / f"{name}.new"
            new.write_text(text)
            new.replace(self.folder / name)

    def hangs(self) -> None:
        """From now on."""
        (self.folder / "hangs").touch()
