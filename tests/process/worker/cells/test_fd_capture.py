"""What is written to a file descriptor: passed on in bounded pieces, and caught up with whoever goes on writing."""

import os
import threading
from collections.abc import Iterator

import pytest

from jdist.worker.cells import output
from jdist.worker.cells.output import FdCapture
from support.waits import eventually

PIECE = b"x" * 4096


class Stream:
    """A stream that remembers how much was written between two flushes."""

    def __init__(self) -> None:
        self.text = ""
        self.unsent = self.most_unsent = 0

    def write(self, text: str) -> int:
        self.text += text
        self.unsent += len(text)
        self.most_unsent = max(self.most_unsent, self.unsent)
        return len(text)

    def flush(self) -> None:
        self.unsent = 0


@pytest.fixture
def fd() -> Iterator[int]:
    """A file descriptor that may be captured."""
    fd = os.open(os.devnull, os.O_WRONLY)
    yield fd
    os.close(fd)


def test_what_was_written_before_comes_first(fd: int) -> None:
    stream = Stream()
    FdCapture(fd, stream)
    for number in range(100):
        os.write(fd, f"child {number}\n".encode())
        stream.write(f"rank {number}\n")
    assert stream.text == "".join(f"child {n}\nrank {n}\n" for n in range(100))


class Buffered:
    """A stream that appends its name and what it holds to ``sent`` when it is flushed."""

    def __init__(self, name: str, sent: list[tuple[str, str]]) -> None:
        self._name, self._sent, self._held = name, sent, ""

    def write(self, text: str) -> int:
        self._held += text
        return len(text)

    def flush(self) -> None:
        if self._held:
            self._sent.append((self._name, self._held))
        self._held = ""


def test_what_goes_to_two_streams_and_descriptors_by_turns_keeps_its_order(fd: int) -> None:
    other_fd = os.open(os.devnull, os.O_WRONLY)
    sent: list[tuple[str, str]] = []
    out, err = Buffered("out", sent), Buffered("err", sent)
    out_capture, err_capture = FdCapture(fd, out), FdCapture(other_fd, err)
    out_capture.keep_order_with([err_capture])
    err_capture.keep_order_with([out_capture])
    for number in range(20):
        out.write(f"line {number}")
        out.write("\n")
        err.write(f"warning {number}\n")
        os.write(fd, b"child\n")
        out.flush()  # as a display does
        sent.append(("display", str(number)))
    os.close(other_fd)
    each = [("out", "line {}\n"), ("err", "warning {}\n"), ("out", "child\n"), ("display", "{}")]
    assert sent == [(name, text.format(number)) for number in range(20) for name, text in each]


def test_it_catches_up_while_a_child_writes_without_a_pause(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refilled(Stream):
        is_refilled = True

        def write(self, text: str) -> int:
            if self.is_refilled:
                os.write(fd, PIECE)
            return super().write(text)

    monkeypatch.setattr(output, "_LONGEST", 60.0)
    stream = Refilled()
    capture = FdCapture(fd, stream)
    os.write(fd, PIECE)
    thread = threading.Thread(target=capture.catch_up, daemon=True)
    thread.start()
    thread.join(30)
    stream.is_refilled, has_ended = False, not thread.is_alive()
    capture.catch_up()  # nothing more is written to the descriptor, whose number may be another's soon
    assert has_ended


def test_much_output_travels_in_bounded_pieces(fd: int) -> None:
    stream = Stream()
    FdCapture(fd, stream)
    for _ in range(256):
        os.write(fd, PIECE)
    assert eventually(lambda: len(stream.text) == 256 * len(PIECE))
    assert stream.most_unsent < 2 * 65536
