"""A GPU driver that reports what a test says, for machines without GPUs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

MIB = 1 << 20


class FakeDriver:
    """A folder with a module ``pynvml``, to be the first of PYTHONPATH. It has no GPUs until a test adds some."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copy(Path(__file__).parent / "pynvml.py", folder)
        for name in ("asked", "hanging"):
            (folder / name).touch()
        self.reports()

    @property
    def path(self) -> str:
        """For PYTHONPATH."""
        return os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH", ""))))

    @property
    def asked(self) -> int:
        """How often it was asked."""
        return len((self.folder / "asked").read_text().splitlines())

    @property
    def hanging(self) -> list[int]:
        """The processes in which it has not come to an end."""
        return [int(line) for line in (self.folder / "hanging").read_text().split()]

    def reports(self, *gpus: dict[str, Any], **state: Any) -> None:
        """From now on; at once or not at all, for whoever reads meanwhile."""
        new = self.folder / "state.new"
        new.write_text(json.dumps({"gpus": gpus, **state}))
        new.replace(self.folder / "state.json")


def gpu(uuid: str, name: str = "NVIDIA H200", total: int = 143771, used: int = 0, **more: Any) -> dict[str, Any]:
    """A GPU in the fake driver's terms; sizes in MiB, processes as ``{pid: MiB or None}``."""
    processes = [[pid, own and own * MIB] for pid, own in more.pop("processes", {}).items()]
    return {"uuid": uuid, "name": name, "total": total * MIB, "used": used * MIB, "processes": processes, **more}
