"""The folder of saves: complete or not there, whatever happens on the way, and loaded only if nobody else can write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jdist.core.errors import UsageError
from jdist.core.messages.saving import MANIFEST
from jdist.worker.session import folder


def complete(directory: Path, save: str, keep: int = 2) -> Path:
    return finish(begin(directory, save), save, keep)


def begin(directory: Path, save: str) -> Path:
    writing, _ = folder.begin(directory, save)
    return writing


def finish(writing: Path, save: str, keep: int = 2) -> Path:
    folder.write(writing / folder.ALL, save.encode())
    folder.write(writing / folder.part_file(0), b"part")
    assert folder.is_first_to_complete(writing)
    folder.write(writing / MANIFEST, save.encode())
    return folder.commit(writing, keep)


def test_saves_are_numbered_and_the_newest_are_kept(tmp_path: Path) -> None:
    made = [complete(tmp_path / "d", f"id{n}") for n in range(4)]
    assert [path.name for path in made] == ["save-000001", "save-000002", "save-000003", "save-000004"]
    assert folder.saves(tmp_path / "d") == [(3, made[2]), (4, made[3])]
    assert folder.newest(tmp_path / "d") == made[3]
    assert folder.newest(made[2]) == made[2]
    assert sorted(p.name for p in made[3].rglob("*")) == ["all.msgpack", MANIFEST, "names", "tensors"]
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["save-000003", "save-000004"]


def test_one_rank_alone_completes_a_save(tmp_path: Path) -> None:
    writing, _ = folder.begin(tmp_path / "d", "id")
    assert [folder.is_first_to_complete(writing) for _ in range(3)] == [True, False, False]


def test_two_clusters_save_into_one_folder_at_once(tmp_path: Path) -> None:
    one, other = begin(tmp_path / "d", "one"), begin(tmp_path / "d", "other")
    held = folder.hold(one), folder.hold(other)
    assert [finish(other, "other").name, finish(one, "one").name] == ["save-000001", "save-000002"]
    for fd in held:
        os.close(fd)
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["save-000001", "save-000002"]


def test_a_number_that_another_takes_at_the_last_moment_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = complete(tmp_path / "d", "one")
    wanted = [taken, tmp_path / "d" / "save-000002"]
    writing = begin(tmp_path / "d", "two")
    monkeypatch.setattr(folder, "next_save", lambda _: wanted.pop(0))
    assert finish(writing, "two").name == "save-000002"
    assert (taken / folder.ALL).read_bytes() == b"one"


def test_what_dead_ranks_have_left_is_removed_by_the_next_save_and_nothing_else(tmp_path: Path) -> None:
    abandoned, in_use = begin(tmp_path / "d", "abandoned"), begin(tmp_path / "d", "in use")
    os.close(folder.hold(abandoned))
    held = [folder.hold(in_use) for _ in range(2)]
    os.close(held.pop())
    being_made = tmp_path / "d" / ".writing-being-made"
    being_made.mkdir()
    complete(tmp_path / "d", "new")
    assert not abandoned.exists()
    assert in_use.exists()
    assert being_made.exists()
    os.close(held.pop())


def test_what_ranks_of_another_host_may_still_write_is_left_to_them_for_a_while(tmp_path: Path) -> None:
    """The locks of other hosts do not show on each file system."""
    theirs = begin(tmp_path / "d", "theirs")
    os.close(folder.hold(theirs))
    (theirs / folder._IN_USE).write_text("another-host/f000\n")
    folder.sweep(tmp_path / "d")
    assert theirs.exists()
    for path in (*theirs.rglob("*"), theirs):
        os.utime(path, (0, 0))
    folder.sweep(tmp_path / "d")
    assert not theirs.exists()


def test_a_save_that_is_given_up_when_it_is_complete_stays(tmp_path: Path) -> None:
    writing = begin(tmp_path / "d", "id")
    made = finish(writing, "id")
    folder.discard(writing)
    assert (made / folder.ALL).read_bytes() == b"id"
    writing = begin(tmp_path / "d", "next")
    folder.discard(writing)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["save-000001"]


def test_what_was_half_removed_keeps_its_number(tmp_path: Path) -> None:
    (tmp_path / "d" / "save-000007" / "names").mkdir(parents=True)
    (tmp_path / "d").chmod(0o700)
    assert complete(tmp_path / "d", "id").name == "save-000008"


def test_a_folder_that_was_removed_cannot_be_held(tmp_path: Path) -> None:
    writing = begin(tmp_path / "d", "id")
    folder.discard(writing)
    with pytest.raises(UsageError, match="cannot write into"):
        folder.hold(writing)


def test_a_folder_that_is_open_is_read_whatever_takes_its_name(tmp_path: Path) -> None:
    made = complete(tmp_path / "d", "mine")
    with folder.opened(made) as inside:
        made.rename(tmp_path / "moved")
        made.mkdir()
        (made / MANIFEST).write_bytes(b"theirs")
        assert (inside / MANIFEST).read_bytes() == b"mine"


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["mkdir", "open", "fsync", "rename", "chmod", "unlink", "rmdir"])
def test_a_process_that_ends_at_any_moment_leaves_the_older_save_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Each call of the operating system in turn is the last one that the process makes."""
    directory = tmp_path / "d"
    complete(directory, "old", keep=1)
    original, left, count = getattr(os, call), 0, 0

    def limited(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > left:
            raise Killed
        return original(*args, **kwargs)

    while True:
        with monkeypatch.context() as patched:
            count = 0
            patched.setattr(os, call, limited)
            try:
                complete(directory, f"new{left}", keep=1)
                break
            except Killed:
                pass
        found = folder.newest(directory)
        assert (found / folder.ALL).read_bytes() == (found / MANIFEST).read_bytes()
        left += 1
    assert left or call == "unlink"
    assert (folder.newest(directory) / MANIFEST).read_bytes() == f"new{left}".encode()


def test_a_folder_without_a_save_is_named(tmp_path: Path) -> None:
    for directory, what in ((tmp_path, "saved session in"), (tmp_path / "missing", "folder")):
        with pytest.raises(UsageError, match=f"there is no {what} {directory}; name the folder"):
            folder.newest(directory)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file/d cannot be written to: Not a directory"):
        folder.begin(tmp_path / "file" / "d", "id")


def check(save: Path) -> None:
    with folder.opened(save):
        pass


@pytest.mark.parametrize("what", ["", MANIFEST, folder.ALL, "tensors", "..", "names/extra"])
def test_what_others_can_change_is_not_loaded(tmp_path: Path, what: str) -> None:
    made = complete(tmp_path / "d", "id")
    check(made)
    path = made / what
    if not path.exists():
        path.touch()
    path.chmod(0o777)
    with pytest.raises(UsageError, match=r"others may change .* chmod go-w"):
        check(made)


def test_what_belongs_to_others_or_is_a_link_is_not_loaded(tmp_path: Path) -> None:
    made = complete(tmp_path / "d", "id")
    (made / "names" / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="names/link is a link"):
        check(made)
    (made / "names" / "link").unlink()
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(made / MANIFEST, 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        check(made)


def test_nobody_else_can_read_a_save(tmp_path: Path) -> None:
    os.umask(0o000)
    try:
        made = complete(tmp_path / "d", "id")
    finally:
        os.umask(0o022)
    for path in (made.parent, made, *made.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
