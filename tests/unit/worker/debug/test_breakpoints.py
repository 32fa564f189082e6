"""jdist.breakpoint in a process that is no rank: Python's own breakpoint, under its conditions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import jdist


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the debugger of this process was entered."""
    entered: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: entered.append(1))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    return entered


@pytest.mark.parametrize(
    ("given", "is_entered"),
    [
        ({}, True),
        ({"when": False}, False),
        ({"when": torch.tensor(float("nan")).isnan()}, True),
        ({"when": torch.tensor(0.0).isnan()}, False),
        ({"ranks": 2}, True),
        ({"ranks": 0}, False),
        ({"ranks": [1, 2]}, True),
        ({"ranks": "0-1,3"}, False),
        ({"ranks": "!0"}, True),
        ({"ranks": "-2"}, True),
        ({"when": False, "ranks": "no ranks"}, False),
    ],
)
def test_it_stops_where_it_should(calls: list[int], given: dict[str, Any], is_entered: bool) -> None:
    jdist.breakpoint(**given)
    assert bool(calls) == is_entered


def test_a_rank_that_there_is_not_is_an_error(calls: list[int]) -> None:
    with pytest.raises(jdist.UsageError, match="7"):
        jdist.breakpoint(ranks="7")
    assert not calls


def test_in_a_script_pdb_stops_in_the_callers_frame_and_imports_no_torch() -> None:
    script = "import jdist, sys\nx = 40\njdist.breakpoint(x > 1)\nprint('torch' in sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", script], input="p x + 2\nc\n", capture_output=True, text=True, timeout=60, check=True
    )
    assert "(Pdb) 42" in done.stdout
    assert done.stdout.endswith("False\n")
