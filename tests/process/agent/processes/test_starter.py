"""Starters: what the interpreters of all ranks have in common."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jdist.agent.processes.forkserver import ProcessRequest
from jdist.agent.processes.starter import SpawnStarter
from support.waits import eventually


def test_strings_hash_alike_in_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    written = tmp_path / "hash"
    code = f"import os; from pathlib import Path; Path('{written}~').write_text(str(hash('a'))); "
    code += f"os.rename('{written}~', '{written}')"

    async def start() -> None:
        starter = SpawnStarter()
        try:
            await starter.start(ProcessRequest("builtins:exec", code.encode(), os.devnull, {}))
            assert await asyncio.to_thread(eventually, written.exists, 60)
        finally:
            starter.close()

    asyncio.run(start())
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", "print(hash('a'))"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert written.read_text() == shown.stdout.strip()
