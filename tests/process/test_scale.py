"""The benchmark of the controller's cost: it runs, at two small sizes, and draws what it measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_a_real_controller_with_made_up_nodes(tmp_path: Path) -> None:
    figure = tmp_path / "scale.svg"
    words = [str(ROOT / "benchmarks" / "scale.py"), "--nodes", "1", "8", "--turns", "2", "--figure", str(figure)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if re.match(r" +\d+ +\d+ ", line)]
    assert [(nodes, ranks) for nodes, ranks, *_ in rows] == [("1", "8"), ("8", "64")]
    start, _idle, cell, _lines, report, verdict = (float(row[2 + 2 * n]) for row in rows[1:] for n in range(6))
    assert start > cell > 0
    assert report > 0
    assert verdict > 0
    drawn = ET.parse(figure).getroot()
    assert len(drawn.findall(f"{SVG}circle")) == 8  # two sizes on four curves
