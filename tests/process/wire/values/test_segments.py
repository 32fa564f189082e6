"""Segments: bulk bytes from one process of a host to another."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.core.errors import ProtocolError, UsageError, ValueFailed
from jdist.core.messages.base import ProbeWire
from jdist.wire.values import segments
from jdist.wire.values.segments import (
    ALIGNMENT,
    Segment,
    create_probe,
    layout,
    receiving,
    shares_memory,
    split,
    sweep,
    sweep_dead,
    sweep_handed_over,
)


@pytest.fixture
def cluster() -> Iterator[str]:
    """A cluster's name; fails the test that leaves one of its segments behind."""
    name = f"t{secrets.token_hex(4)}"
    yield name
    assert sweep(name) == []


def made(cluster: str, *pieces: bytes) -> Segment:
    segment = Segment.create(cluster, layout([len(p) for p in pieces])[1])
    segment.fill([memoryview(p) for p in pieces])
    return segment


@given(st.lists(st.integers(0, 300)))
def test_layout_is_aligned_and_disjoint(sizes: list[int]) -> None:
    offsets, total = layout(sizes)
    ends = [start + size for start, size in zip(offsets, sizes, strict=True)]
    assert all(start % ALIGNMENT == 0 for start in offsets)
    assert all(end <= start for end, start in zip(ends, offsets[1:], strict=False))
    assert total == max(ends, default=0)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_fill_and_split_are_inverse(pieces: list[bytes]) -> None:
    sizes = [len(p) for p in pieces]
    with Segment.create("split", layout(sizes)[1]) as segment:
        segment.unlink()
        segment.fill([memoryview(p) for p in pieces])
        assert [bytes(b) for b in split(segment.view, sizes)] == pieces


def test_too_short_memory_is_refused() -> None:
    with pytest.raises(ProtocolError, match="3 bytes arrived where 4"):
        split(memoryview(bytearray(3)), [4])


def test_another_process_reads_what_was_filled(cluster: str) -> None:
    with made(cluster, b"abc", b"", b"defg") as segment:
        code = (
            "import sys; from jdist.wire.values.segments import Segment, split\n"
            "with Segment.open(sys.argv[1], int(sys.argv[2])) as s:\n"
            "    print([bytes(b) for b in split(s.view, [3, 0, 4])])"
        )
        command = [sys.executable, "-c", code, segment.path, str(segment.nbytes)]
        env = os.environ | {"PYTHONPATH": str(Path(segments.__file__).parents[3])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=True)
        segment.unlink()
    assert done.stdout.strip() == "[b'abc', b'', b'defg']"


def test_only_the_owner_may_read_it(cluster: str) -> None:
    with made(cluster, b"secret") as segment:
        assert Path(segment.path).stat().st_mode & 0o777 == 0o600
        segment.unlink()


def test_private_readers_do_not_see_each_others_writes(cluster: str) -> None:
    with made(cluster, b"xyz") as segment:
        one, two = (Segment.open(segment.path, 3) for _ in range(2))
        shared = Segment.open(segment.path, 3, private=False)
        segment.unlink()
    with one, two, shared:
        one.view[:] = b"111"
        assert bytes(two.view) == b"xyz"
        shared.view[:] = b"222"
        assert bytes(one.view) == b"111"


def test_a_segment_of_no_bytes(cluster: str) -> None:
    with made(cluster, b"") as segment, Segment.open(segment.path, 0) as other:
        assert len(segment.view) == len(other.view) == 0
        segment.unlink()


def test_memory_outlives_close_as_long_as_a_view_does(cluster: str) -> None:
    segment = made(cluster, b"kept")
    view = segment.view[1:]
    segment.unlink()
    segment.close()
    segment.close()
    assert bytes(view) == b"ept"
    with pytest.raises(ValueError, match="closed"):
        _ = segment.view


def test_progress_counts_bytes_by_slices(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SLICE", 100)
    buffers = [memoryview(bytes(250)), memoryview(bytes(30))]
    told: list[int] = []
    with Segment.create(cluster, 1000) as segment:
        segment.unlink()
        segment.fill(buffers, told.append)
    assert told == [100, 200, 250, 280]


def test_a_segment_that_is_closed_while_it_is_filled_writes_into_no_other_file(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled push closes its segment while another thread fills it."""
    segment, write, closers = Segment.create(cluster, 64), os.pwrite, []

    def while_it_is_closed(fd: int, piece: memoryview, offset: int) -> int:
        closers.append(threading.Thread(target=segment.close))
        closers[-1].start()
        closers[-1].join(0.1)
        os.fstat(fd)  # raises if it is closed, and so may be another file's number
        return write(fd, piece, offset)

    segment.unlink()
    monkeypatch.setattr(segments, "SLICE", 4)
    monkeypatch.setattr(segments.os, "pwrite", while_it_is_closed)

    def close_then_go_on(_done: int) -> None:
        closers[-1].join()

    with pytest.raises(OSError, match="Bad file descriptor"):
        segment.fill([memoryview(b"8 bytes.")], close_then_go_on)
    assert len(closers) == 2
    closers[-1].join()


def test_what_does_not_fit_is_refused(cluster: str) -> None:
    with Segment.create(cluster, 3) as segment:
        segment.unlink()
        with pytest.raises(UsageError, match="4 bytes do not fit"):
            segment.fill([memoryview(b"four")])
    with pytest.raises(ValueFailed, match="no room on this host"):
        Segment.create(cluster, 1 << 60)


def test_without_shared_memory_the_temporary_directory_serves(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_SHARED_MEMORY", str(tmp_path / "absent"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with made(cluster, b"here") as segment:
        assert Path(segment.path).parent == tmp_path
        assert bytes(segment.view) == b"here"
        segment.unlink()


def _link(path: Path, good: Path) -> None:
    path.symlink_to(good)


def _open_to_all(path: Path, good: Path) -> None:
    path.write_bytes(good.read_bytes())
    path.chmod(0o666)


def _fifo(path: Path, good: Path) -> None:
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (_link, "cannot be opened"),
        (_open_to_all, "others may read or write"),
        (_fifo, "no regular file"),
        (lambda path, good: path.touch(0o600), "0 bytes where 4"),
        (lambda path, good: None, "No such file"),
    ],
)
def test_a_strange_file_is_refused(cluster: str, tmp_path: Path, make: object, error: str) -> None:
    with made(cluster, b"good") as segment:
        path = tmp_path / f"jdist-x-{'0' * 32}"
        make(path, Path(segment.path))  # type: ignore[operator]
        with pytest.raises((ProtocolError, ValueFailed), match=error):
            Segment.open(str(path), 4)
        segment.unlink()


def test_a_file_of_another_owner_is_refused(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(cluster, b"good") as segment:
        monkeypatch.setattr(os, "geteuid", lambda: 123456)
        with pytest.raises(ProtocolError, match="belongs to user"):
            Segment.open(segment.path, 4)
        monkeypatch.undo()
        segment.unlink()


def test_a_name_that_is_no_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="no segment"):
        Segment.open("/etc/passwd", 4)
    with pytest.raises(UsageError, match="cluster name"):
        Segment.create("../up", 4)


def test_sweep_takes_one_clusters_files_only(cluster: str) -> None:
    other = f"{cluster}-more"
    mine, probe, theirs = made(cluster, b"1"), create_probe(cluster), made(other, b"2")
    mine.close()
    theirs.close()
    assert sweep(cluster) == sorted([mine.path, probe.path])
    assert sweep(other) == [theirs.path]


def test_probe_is_here_only_while_its_file_is(cluster: str) -> None:
    probe = create_probe(cluster)
    assert shares_memory(probe)
    assert not shares_memory(ProbeWire(probe.path, "0" * len(probe.nonce)))
    assert not shares_memory(ProbeWire("/etc/passwd", probe.nonce))
    os.unlink(probe.path)
    assert not shares_memory(probe)


def test_no_file_descriptor_is_left(cluster: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with made(cluster, b"abc") as segment, Segment.open(segment.path, 3) as other:
        assert bytes(segment.view) == bytes(other.view)
        segment.unlink()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("of_all", [False, True], ids=["of one cluster", "of all clusters"])
def test_what_a_dead_process_left_is_swept_and_what_a_living_one_made_is_not(cluster: str, of_all: bool) -> None:
    code = (
        "import sys\nfrom jdist.wire.values.segments import Segment\n"
        f"kept = Segment.create({cluster!r}, 10)\n"
        f"given = Segment.create({cluster!r}, 10)\n"
        "given.hand_over(sys.argv[1])\n"
        "print(kept.path, given.path, flush=True)\n"
        "sys.stdin.readline()"
    )
    probe = create_probe(cluster)
    command = [sys.executable, "-c", code, probe.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        kept, handed = child.stdout.readline().split()
        sweep_dead("" if of_all else cluster)
        assert os.path.exists(kept)
        child.kill()
    sweep_dead("" if of_all else cluster)  # an agent that starts at this moment, in another test, may do it first
    assert not os.path.exists(kept)
    assert os.path.exists(handed)
    assert shares_memory(probe)
    assert sweep(cluster) == sorted([probe.path, handed])


def test_what_was_handed_over_unheard_is_swept_by_its_new_owner_alone() -> None:
    cluster = f"t{secrets.token_hex(4)}"
    probe = create_probe(cluster)
    with Segment.create(cluster, 1000) as unheard, Segment.create(cluster, 1000) as others:
        with pytest.raises(ValueFailed):
            others.hand_over(f"jdist-{cluster}-{'0' * 8}{'1' * 8}{'2' * 16}")
        assert sweep_handed_over(cluster) == [unheard.path]
    assert sorted(sweep(cluster)) == sorted([probe.path, others.path])


def test_what_is_handed_over_and_not_taken_goes_with_its_receiver(cluster: str) -> None:
    with receiving(cluster) as other, Segment.create(cluster, 10) as others, Segment.create(cluster, 10) as late:
        others.hand_over(other.path)
        with receiving(cluster) as probe, Segment.create(cluster, 10) as given:
            given.hand_over(probe.path)
            assert os.path.exists(given.path)
        assert not os.path.exists(given.path)
        assert not os.path.exists(probe.path)
        with pytest.raises(ValueFailed, match="nobody waits"):
            late.hand_over(probe.path)
        late.unlink()
        assert os.path.exists(others.path)
    assert sweep(cluster) == []
