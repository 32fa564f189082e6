"""Standard streams of jdist's processes: what they do with text that their encoding lacks."""

from __future__ import annotations

import io
import os
import sys

import pytest

from jdist.wire.processes import prepare_streams, say

TEXT = "● run 7 … é \udcff"


@pytest.mark.parametrize(
    ("encoding", "errors", "written"),
    [
        ("ascii", "strict", b"? run 7 ? ? ?"),
        ("latin-1", "strict", b"? run 7 ? \xe9 ?"),
        ("utf-8", "strict", "● run 7 … é ?".encode()),
        ("ascii", "surrogateescape", b"? run 7 ? ? ?"),
        ("ascii", "ignore", b" run 7   "),
        ("ascii", "backslashreplace", rb"\u25cf run 7 \u2026 \xe9 \udcff"),
    ],
)
def test_any_text_can_be_written(monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, written: bytes) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding, errors))
    prepare_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.write(TEXT)
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        assert stream.buffer.getvalue() == written


def test_a_closed_stream_takes_text_and_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = io.StringIO()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", other)
    prepare_streams()
    assert sys.stderr is other
    with sys.stdout:
        assert not sys.stdout.isatty()
        sys.stdout.write("●")


def test_what_nobody_can_read_any_more_is_said_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        say("joined")
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # which its end can flush to
