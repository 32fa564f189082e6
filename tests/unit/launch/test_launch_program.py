"""Last words of agents."""

from __future__ import annotations

import pytest

from jdist.launch.launch_program import last_words

ENROLLED = "jdist agent: enrolled with the controller at 127.0.0.1:5; waiting for the other nodes"
REFUSED = "jdist agent: refused by the controller: torch is not installed there"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("a\nb\nc\nd\n", "b / c / d"),
        (f"{ENROLLED}\n{REFUSED}\n", "refused by the controller: torch is not installed there"),
        (f"{REFUSED}\n{ENROLLED}\n{REFUSED}\n", "refused by the controller: torch is not installed there"),
        (f"{REFUSED}\nTraceback:\n  of another\nOSError: x\n", "Traceback: /   of another / OSError: x"),
    ],
)
def test_the_end_or_the_refusal(log: str, said: str) -> None:
    assert last_words(log) == said
