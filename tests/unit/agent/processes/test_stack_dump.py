from __future__ import annotations

import pytest

from jdist.agent.processes.stack_dump import describe_place

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
