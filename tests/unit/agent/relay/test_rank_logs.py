"""Rank logs hold everything that a rank wrote, and are read from their ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from jdist.agent.relay.iopub import RankLogs


@pytest.fixture
def logs(tmp_path: Path) -> RankLogs:
    return RankLogs(tmp_path)


def test_the_log_holds_everything_and_is_read_from_its_end(logs: RankLogs) -> None:
    written = [f"line {n}\n" for n in range(500)]
    for text in written:
        logs.write(3, text)
    logs.flush()
    assert logs.path(3).read_text() == "".join(written)
    assert logs.read(3, 2) == "line 498\nline 499"
    assert logs.read(3, 5000).count("\n") == 499
    assert logs.read(0, 5) == "", "a rank that has written nothing"


def test_the_newest_lines_come_whole_however_long_they_are(logs: RankLogs) -> None:
    for n in range(5):
        logs.write(0, f"{n}" * 10_000 + "\n")
    assert logs.read(0, 3).splitlines() == [f"{n}" * 10_000 for n in (2, 3, 4)]


@pytest.mark.parametrize("lines", [0, -3])
def test_no_lines_of_a_log_are_no_lines(logs: RankLogs, lines: int) -> None:
    logs.write(0, "a\nb\n")
    assert logs.read(0, lines) == ""


def test_a_log_is_read_before_it_is_flushed(logs: RankLogs) -> None:
    logs.write(0, "no newline yet")
    assert logs.read(0, 5) == "no newline yet"


def test_a_progress_bar_is_read_as_it_stands_last(logs: RankLogs) -> None:
    logs.write(0, "start\n  1%\r 50%\r100%\r\nend\n")
    assert logs.read(0, 5) == "start\n100%\nend"


def test_bytes_that_are_no_text_are_marked(logs: RankLogs) -> None:
    logs.write(0, "name \udcff!\n")
    assert logs.read(0, 1) == "name ?!"


def test_of_a_log_that_grows_past_the_limit_the_older_half_is_set_aside(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 10)
    for text in ("a" * 6, "b" * 6, "new\n"):
        logs.write(0, text)
        logs.flush()
    assert logs.read(0, 5) == "new"
    assert logs.path(0).with_suffix(".old.log").read_text() == "aaaaaabbbbbb"


def test_of_what_is_longer_than_the_limit_the_end_is_kept(tmp_path: Path) -> None:
    logs = RankLogs(tmp_path, 10)
    logs.write(0, "a" * 25 + "\n")
    logs.flush()
    found = logs.path(0).with_suffix(".old.log").read_text()
    assert found == "[jdist: 16 bytes are missing here: there was no room for them]\n" + "a" * 9 + "\n"


def test_logs_leave_room_on_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=64 * 1000))
    logs = RankLogs(tmp_path)
    for n in range(1000):
        logs.write(0, f"line {n}\n")
        logs.flush()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000
    assert logs.read(0, 1) == "line 999"


def test_what_the_disk_does_not_take_holds_up_nothing_and_is_counted(
    logs: RankLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = logs.path(0)
    logs.write(0, "before\n")
    logs.flush()
    monkeypatch.setattr(logs, "path", lambda _worker: Path("/dev/full"))
    for _ in range(2):
        logs.write(0, "lost\n")
        logs.flush()
    monkeypatch.setattr(logs, "path", lambda _worker: path)
    logs.write(0, "after\n")
    assert logs.read(0, 5).splitlines() == [
        "before",
        "[jdist: 10 bytes are missing here: there was no room for them]",
        "after",
    ]
