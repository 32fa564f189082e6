"""What a job writes while it runs: its log has each line once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jdist.core.messages.observation import VerdictChanged
from jdist.core.observation import Verdict
from jdist.notebook.batch.display import BatchDisplay

SLOW = Verdict(1, "slow", (1,), (0,), "rank 0 waits for rank 1, which is busy", ("waits (5.0 s)",))


@pytest.fixture
def display() -> BatchDisplay:
    unused: Any = None
    return BatchDisplay(unused, unused)


def test_a_verdict_that_goes_on_is_written_once(display: BatchDisplay, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in range(5, 65):
        display.handle(VerdictChanged(1, msgspec.structs.replace(SLOW, details=(f"waits ({seconds}.0 s)",))))
    assert capsys.readouterr().err.splitlines() == [
        "● run 1 waits: rank 0 waits for rank 1, which is busy",
        "  waits (5.0 s)",
    ]


def test_another_verdict_is_written_and_the_same_one_after_an_end(
    display: BatchDisplay, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = msgspec.structs.replace(SLOW, waiting=(0, 2), reason="ranks 0, 2 wait for rank 1, which is busy")
    for verdict in (SLOW, moved, None, moved):
        display.handle(VerdictChanged(1, verdict))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("●")]
    assert [line.removeprefix("● run 1 waits: ") for line in lines] == [
        SLOW.reason,
        moved.reason,
        "● the run is making progress again",
        moved.reason,
    ]
