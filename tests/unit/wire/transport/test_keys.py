"""Keys: the connection file is its user's alone, and a damaged join line is never taken for a whole one."""

from __future__ import annotations

import errno
import os
import stat
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.core.errors import ProtocolError, UsageError
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import Connection, KeyPair, connection_path, new_cluster_id, read_connection, write_keys

PAIR = KeyPair.make()
LINE = JoinLine("c0ffee", ("10.0.0.1", "fd00::1"), 4000, 4001, KeyPair.make().public, PAIR)
CONNECTION = Connection("c1", "c0ffee", "127.0.0.1", 4000, 4001, KeyPair.make().public, PAIR, 77, "0.1")


def test_two_pairs_are_never_alike() -> None:
    pairs = [KeyPair.make() for _ in range(5)]
    assert len({p.public for p in pairs} | {p.secret for p in pairs}) == 10
    assert {len(p.public) for p in pairs} == {40}
    assert len({new_cluster_id() for _ in range(5)}) == 5


# ---------------------------------------------------------------- connection file


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_file_and_its_folder_are_closed_to_others(tmp_path: Path, umask: int) -> None:
    path = connection_path(tmp_path / "runtime", "c1")
    before = os.umask(umask)
    try:
        write_keys(path, CONNECTION, replace=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_connection(path) == CONNECTION
    assert [p.name for p in path.parent.iterdir()] == ["jdist-c1.json"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_full_disk_keeps_nobody_from_writing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    path = connection_path(tmp_path, "c1")

    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("msgspec.json.encode", full)
        with pytest.raises(OSError, match="No space"):
            write_keys(path, CONNECTION, replace=replace)
    assert list(tmp_path.iterdir()) == []
    write_keys(path, CONNECTION, replace=replace)
    assert read_connection(path) == CONNECTION


def test_a_name_that_is_taken_is_refused_and_its_file_kept(tmp_path: Path) -> None:
    path = connection_path(tmp_path, "c1")
    write_keys(path, CONNECTION, replace=False)
    later = Connection("c1", "beef", "::1", 1, 2, "k" * 40, PAIR, 78, "0.1")
    with pytest.raises(FileExistsError):
        write_keys(path, later, replace=False)
    assert read_connection(path) == CONNECTION
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = connection_path(tmp_path, "c1")
    write_keys(path, CONNECTION, replace=False)
    path.chmod(mode)
    with pytest.raises(ProtocolError, match="open to other users"):
        read_connection(path)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"nonsense", b'{"name": 5}', b"\xff\xfe", b'{"name": "\xff"}', b"[" * 9999]
)
def test_a_damaged_file_is_named(tmp_path: Path, text: bytes) -> None:
    path = connection_path(tmp_path, "c1")
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(ProtocolError, match=r"jdist-c1\.json is no connection file"):
        read_connection(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_connection(connection_path(tmp_path, "none"))


# ---------------------------------------------------------------- join line


def test_a_join_line_is_one_word_and_is_read_back() -> None:
    text = LINE.encode()
    assert text == text.strip()
    assert text.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert JoinLine.decode(text) == LINE
    assert JoinLine.decode(f"  {text}\n") == LINE


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_line_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    text = LINE.encode()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(codec="utf-8")) + text[at + 1 :]
    if changed != text and changed.strip() != text:
        with pytest.raises(UsageError, match="join line"):
            JoinLine.decode(changed)


@pytest.mark.parametrize("pad", range(3))
def test_another_spelling_of_the_same_bytes_is_refused(pad: int) -> None:
    """Base64 also reads ``+`` and ``/``, padding, and any value of the last character's unused bits."""
    line = JoinLine("c0ffee", ("10.0.0.1" + "0" * pad,), 4000, 4001, "\xff\xfe\xff" * 40, PAIR)
    text = line.encode()
    assert JoinLine.decode(text) == line
    alphabet = string.ascii_letters + string.digits + "-_"
    last = [text[:-1] + letter for letter in alphabet if letter != text[-1]]
    for other in (text.replace("-", "+"), text.replace("_", "/"), text + "=", text + "==", *last):
        if other != text:
            with pytest.raises(UsageError, match="join line"):
                JoinLine.decode(other)


@given(st.integers(0, 300))
def test_a_line_that_was_cut_is_refused(length: int) -> None:
    text = LINE.encode()
    with pytest.raises(UsageError, match="join line"):
        JoinLine.decode(text[: min(length, len(text) - 1)])


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    for line in (text, f"jdist1.{text}"):
        with pytest.raises(UsageError, match="join line"):
            JoinLine.decode(line)


def test_keys_do_not_show_in_a_repr_that_logs_might_hold() -> None:
    assert PAIR.secret not in repr(PAIR)
    assert PAIR.secret not in repr(CONNECTION)
    assert PAIR.secret not in repr(LINE)
