from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jdist.agent.processes.helpers import describe_place, read_place

IN_A_CELL = """\
Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/re/__init__.py", line 166 in match
  File "/home/u/train.py", line 9 in check
  File "/tmp/ipykernel_71/3045.py", line 4 in <module>
  File "/env/site-packages/IPython/core/interactiveshell.py", line 3548 in run_code
"""
IN_A_SCRIPT = """\
Current thread 0x00007f (most recent call first):
  File "/home/u/train.py", line 9 in check
  File "/home/u/train.py", line 20 in <module>
"""


@pytest.mark.parametrize(
    ("dump", "place"),
    [(IN_A_CELL, "cell line 4"), (IN_A_SCRIPT, "check (train.py, line 9)"), ("", ""), ("Current thread 0x0", "")],
)
def test_a_dump_is_described_by_the_cells_line_or_the_innermost_function(dump: str, place: str) -> None:
    assert describe_place(dump) == place


def test_a_process_that_ends_meanwhile_has_no_place(tmp_path: Path) -> None:
    """Its files are removed with it."""
    file = tmp_path / "kernel-1.stack"
    assert asyncio.run(read_place(file, file.unlink)) == ""
    assert asyncio.run(read_place(tmp_path / "gone" / "kernel-1.stack", lambda: None)) == ""
