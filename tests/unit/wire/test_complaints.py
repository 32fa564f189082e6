"""Complaints: the first lines are said, the rest counted; a stranger's words cannot steer a terminal."""

from __future__ import annotations

from jdist.wire.complaints import Complaints


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = 100.0
        self.complaints = Complaints("who", self.lines.append, lambda: self.now)


def test_a_flood_is_a_few_lines_and_a_count() -> None:
    log = Log()
    for n in range(1000):
        log.complaints.say(f"number {n}")
    assert log.lines == [f"who: number {n}" for n in range(20)]
    log.now += 10.0
    log.complaints.say("later")
    assert log.lines[20:] == ["who: … and 980 more like that", "who: later"]


def test_what_a_terminal_would_obey_is_spelled_out_and_what_is_long_is_cut() -> None:
    log = Log()
    log.complaints.say("a\x1b[2J\nb")
    log.complaints.say("x" * 5000)
    assert log.lines[0] == "who: a\\x1b[2J\\nb"
    assert len(log.lines[1]) < 500
